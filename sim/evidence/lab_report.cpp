#include "sim/evidence/lab_report.hpp"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "core/error.hpp"
#include "core/load.hpp"
#include "core/statistics.hpp"
#include "core/table.hpp"
#include "core/units.hpp"

namespace stepcast {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(LabCalibration, world_size, link_rate_bytes_per_s, largest_bytes)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(LabMachine, calibrated_copy_s, copy_s)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(LabPerturbation, name, measured_change, measured_change_low,
                                   measured_change_high, predicted_change)

namespace {

void require_one_of(const char* key, const std::string& found, const auto& values) {
  if (std::find(values.begin(), values.end(), found) == values.end())
    throw InputError(std::string("key '") + key + "' of a case: '" + found + "' is none of '" +
                     joined(values, "', '") + "'");
}

constexpr double kReplayedMedian = 0.04, kReplayedP90 = 0.10, kReplayedWorst = 0.20, kRealMedian = 0.08;
constexpr double kChange = 0.15;  // of the change itself

}  // namespace

std::string link_rate_text(double bytes_per_s) {
  const double bits = 8.0 * bytes_per_s;
  return bits >= 1e9 ? formatted("%.3g Gbit/s", bits / 1e9) : formatted("%.3g Mbit/s", bits / 1e6);
}

double LabMachine::drift() const {
  std::vector<double> all = copy_s;
  if (calibrated_copy_s > 0.0) all.push_back(calibrated_copy_s);
  return all.empty() ? 0.0 : quantile(all, 1.0) / quantile(all, 0.0) - 1.0;
}

std::string describe_in_lab(const Case& one) {
  return one.configuration.model + ", " + one.name + ", " +
         counted(static_cast<std::size_t>(one.configuration.world_size), "rank") + " over " +
         one.configuration.cluster;
}

Errors errors_of(const std::vector<Case>& cases, const std::string& compute) {
  return accuracy_of(cases, [&](const Case& one) { return one.configuration.compute == compute; }).errors;
}

std::vector<LabGroup> group_errors(const std::vector<Case>& cases) {
  std::vector<LabGroup> groups;
  for (const std::string compute : kLabComputes)
    for (const std::string distance : kLabDistances) {
      const Accuracy accuracy = accuracy_of(cases, [&](const Case& one) {
        return one.configuration.compute == compute && one.distance == distance;
      });
      if (accuracy.errors.count > 0) groups.push_back({compute, distance, accuracy.errors});
    }
  return groups;
}

StrategyOrder order_of_strategies(const std::vector<Case>& cases) {
  const auto circumstances = [](const Case& one) {
    const Configuration& c = one.configuration;
    return std::tie(c.model, c.cluster, c.compute, c.batch, c.world_size, c.threads);
  };
  const auto both = [](const Estimate& a, const Estimate& b) {
    return to_text(Seconds(a.value)) + " and " + to_text(Seconds(b.value));
  };
  StrategyOrder order;
  for (const Case& faster : cases)
    for (const Case& slower : cases) {
      if (circumstances(faster) != circumstances(slower)) continue;
      if (faster.measured->high >= slower.measured->low) continue;
      ++order.pairs;
      if (faster.predicted->value < slower.predicted->value) continue;
      order.wrong.push_back(describe_in_lab(faster) + " (" + faster.configuration.compute +
                            ") is faster than " + slower.name + ": measured " +
                            both(*faster.measured, *slower.measured) + ", predicted " +
                            both(*faster.predicted, *slower.predicted));
    }
  return order;
}

double LabPerturbation::error() const {
  const double difference = predicted_change - measured_change;
  return difference == 0.0 ? 0.0 : difference / std::abs(measured_change);
}
bool LabPerturbation::within() const {
  return std::abs(error()) <= kChange ||
         (measured_change_low <= predicted_change && predicted_change <= measured_change_high);
}

LabPerturbation perturbation_between(const std::string& name, const Case& plain, const Case& changed) {
  const Estimate &before = *plain.measured, &after = *changed.measured;
  return {name, after.value / before.value - 1.0, after.low / before.high - 1.0,
          after.high / before.low - 1.0, changed.predicted->value / plain.predicted->value - 1.0};
}

namespace {

LabGoal at_most(const std::string& what, double value, double limit) {
  return {what + " " + percent_text(value) + " (at most " + percent_text(limit) + ")", value <= limit};
}

/// `12 of 12`: all must be.
LabGoal all_of(const std::string& what, std::size_t good, std::size_t all) {
  return {what + ": " + std::to_string(good) + " of " + std::to_string(all), good == all};
}

template <class List, class Condition>
std::size_t count_if(const List& list, Condition condition) {
  return static_cast<std::size_t>(std::count_if(list.begin(), list.end(), condition));
}

}  // namespace

std::vector<LabGoal> goals(const LabReport& report) {
  std::vector<LabGoal> result;
  const Errors replayed = errors_of(report.cases, "replayed");
  if (replayed.count > 0) {
    result.push_back(
        at_most("replayed compute: median absolute error", replayed.relative.median, kReplayedMedian));
    result.push_back(at_most("replayed compute: 90th percentile", replayed.relative.p90, kReplayedP90));
    const std::size_t good = count_if(report.cases, [](const Case& one) {
      return one.configuration.compute == "replayed" && one.within(kReplayedWorst);
    });
    result.push_back(all_of("replayed compute: cases at most " + percent_text(kReplayedWorst) +
                                " off or inside their range of launches",
                            good, replayed.count));
  }
  if (const Errors real = errors_of(report.cases, "real"); real.count > 0)
    result.push_back(at_most("real compute: median absolute error", real.relative.median, kRealMedian));
  if (!report.perturbations.empty())
    result.push_back(
        all_of("perturbations whose change is at most " + percent_text(kChange) +
                   " of itself off or inside its range",
               count_if(report.perturbations, [](const LabPerturbation& one) { return one.within(); }),
               report.perturbations.size()));
  const StrategyOrder order = order_of_strategies(report.cases);
  if (order.pairs > 0)
    result.push_back(
        all_of("pairs of strategies in the measured order", order.pairs - order.wrong.size(), order.pairs));
  return result;
}

namespace {

std::string groups_text(const std::vector<Case>& cases) {
  Table table({"compute", "distance from the calibration", "cases", "median", "p90", "worst"});
  const auto add = [&](const std::string& compute, const std::string& distance, const Errors& errors) {
    table.add({compute, distance, std::to_string(errors.count), percent_text(errors.relative.median),
               percent_text(errors.relative.p90), percent_text(errors.relative.worst)});
  };
  const std::vector<LabGroup> groups = group_errors(cases);
  for (const std::string compute : kLabComputes) {
    for (const LabGroup& group : groups)
      if (group.compute == compute) add(compute, group.distance, group.errors);
    if (const Errors all = errors_of(cases, compute); all.count > 0) add(compute, "all", all);
  }
  return table.text();
}

std::string perturbations_text(const std::vector<LabPerturbation>& perturbations) {
  Table table({"perturbation", "measured change", "from", "to", "predicted change", "off by", "within"});
  for (const LabPerturbation& one : perturbations)
    table.add({one.name, signed_percent_text(one.measured_change),
               signed_percent_text(one.measured_change_low), signed_percent_text(one.measured_change_high),
               signed_percent_text(one.predicted_change), signed_percent_text(one.error()),
               one.within() ? "yes" : "no"});
  return table.text();
}

std::string order_text(const StrategyOrder& order) {
  std::string text = std::to_string(order.pairs) + (order.pairs == 1 ? " pair differs" : " pairs differ") +
                     " by more than their launches, " + std::to_string(order.wrong.size()) +
                     " predicted in the wrong order\n";
  for (const std::string& wrong : order.wrong) text += "  " + wrong + "\n";
  return text;
}

std::string machine_text(const LabMachine& machine) {
  if (machine.copy_s.empty()) return "";
  const Estimate copy = estimate_of(machine.copy_s);
  const std::string calibrated =
      machine.calibrated_copy_s > 0.0  // not known where an earlier run calibrated
          ? to_text(Seconds(machine.calibrated_copy_s)) + " after the calibration and "
          : "";
  std::string text = "\nThe machine: to copy 1 MiB took " + calibrated + to_text(Seconds(copy.low)) + " to " +
                     to_text(Seconds(copy.high)) + " while the cases ran\n";
  if (machine.drift() > kSteadyMachine)
    text += "  Its speed moved by " + percent_text(machine.drift()) +
            ": errors are the machine's, too. Best is one that nobody else uses.\n";
  return text;
}

}  // namespace

std::string to_text(const LabReport& report) {
  std::vector<std::string> columns{"compute",  "model",    "strategy", "ranks", "batch", "cluster",
                                   "distance", "measured", "launches", "low",   "high"};
  const std::vector<std::string> errors = error_columns(report.cases);
  columns.insert(columns.end(), errors.begin(), errors.end());
  std::string text = "Absolute error of the step time; calibrated with " +
                     std::to_string(report.calibration.world_size) + " hosts at " +
                     link_rate_text(report.calibration.link_rate_bytes_per_s) + " only:\n\n" +
                     groups_text(report.cases) + "\nEvery case, the worst first:\n\n" +
                     cases_text(worst_first(report.cases), columns) + "\n" + errors_text(report.cases);
  if (!report.perturbations.empty())
    text += "\nWhat a change does to the step:\n\n" + perturbations_text(report.perturbations);
  text += "\nOrder of strategies: " + order_text(order_of_strategies(report.cases)) +
          machine_text(report.machine) + "\nGoals:\n";
  for (const LabGoal& goal : goals(report))
    text += (goal.met ? "  met     " : "  MISSED  ") + goal.text + "\n";
  return text;
}

void to_json(nlohmann::json& json, const LabReport& report) {
  const StrategyOrder order = order_of_strategies(report.cases);
  json = accuracy_json(report.cases);
  json.update({{"context", report.context},
               {"calibration", report.calibration},
               {"machine", report.machine},
               {"cases", report.cases},
               {"speedups", speedups_json(speedups(report.cases))},
               {"perturbations", report.perturbations},
               {"order", {{"pairs", order.pairs}, {"wrong", order.wrong}}}});
  json["machine"]["drift"] = report.machine.drift();
  for (std::size_t i = 0; i < report.perturbations.size(); ++i)
    json["perturbations"][i].update(
        {{"error", report.perturbations[i].error()}, {"within", report.perturbations[i].within()}});
  for (const char* list : {"groups", "totals", "goals"}) json[list] = nlohmann::json::array();
  const auto add_errors = [&](const char* list, const std::string& compute, const Errors& errors) {
    if (errors.count == 0) return;
    json[list].push_back(errors_json(errors));
    json[list].back()["compute"] = compute;
  };
  for (const LabGroup& group : group_errors(report.cases)) {
    add_errors("groups", group.compute, group.errors);
    json["groups"].back()["distance"] = group.distance;
  }
  for (const char* compute : kLabComputes) add_errors("totals", compute, errors_of(report.cases, compute));
  for (const LabGoal& goal : goals(report)) json["goals"].push_back({{"text", goal.text}, {"met", goal.met}});
}

void from_json(const nlohmann::json& json, LabReport& report) {
  json.at("context").get_to(report.context);
  json.at("calibration").get_to(report.calibration);
  json.at("machine").get_to(report.machine);
  json.at("cases").get_to(report.cases);
  json.at("perturbations").get_to(report.perturbations);
  for (const Case& one : report.cases) {
    require_one_of("compute", one.configuration.compute, kLabComputes);
    require_one_of("distance", one.distance, kLabDistances);
  }
}

LabReport load_lab_report(const std::string& path) { return load_as<LabReport>(path, kLabSchema); }

}  // namespace stepcast
