#include "sim/evidence/lab_report.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <tuple>

#include "core/statistics.hpp"
#include "core/table.hpp"
#include "core/units.hpp"

namespace stepcast {
namespace {

constexpr double kReplayedMedian = 0.04, kReplayedP90 = 0.10, kReplayedWorst = 0.20, kRealMedian = 0.08;
constexpr double kChange = 0.15;  // of the change itself

}  // namespace

std::string link_rate_text(double bytes_per_s) {
  constexpr double kBits = 8.0;
  const double bits = kBits * bytes_per_s;
  const bool giga = bits >= 1e9;
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.3g %s", bits / (giga ? 1e9 : 1e6), giga ? "Gbit/s" : "Mbit/s");
  return text.data();
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

ErrorSummary errors_of(const std::vector<Case>& cases, const std::string& compute) {
  return accuracy_of(cases, [&](const Case& one) { return one.configuration.compute == compute; }).errors;
}

std::vector<LabGroup> group_errors(const std::vector<Case>& cases) {
  std::vector<LabGroup> groups;
  for (const std::string compute : kLabComputes)
    for (const std::string distance : kLabDistances) {
      const Accuracy accuracy = accuracy_of(cases, [&](const Case& one) {
        return one.configuration.compute == compute && one.distance == distance;
      });
      if (accuracy.errors.cases > 0) groups.push_back({compute, distance, accuracy.errors});
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
  const ErrorSummary replayed = errors_of(report.cases, "replayed");
  if (replayed.cases > 0) {
    result.push_back(at_most("replayed compute: median absolute error", replayed.median, kReplayedMedian));
    result.push_back(at_most("replayed compute: 90th percentile", replayed.p90, kReplayedP90));
    const std::size_t good = count_if(report.cases, [](const Case& one) {
      return one.configuration.compute == "replayed" && one.within(kReplayedWorst);
    });
    result.push_back(all_of("replayed compute: cases at most " + percent_text(kReplayedWorst) +
                                " off or inside their range of launches",
                            good, replayed.cases));
  }
  if (const ErrorSummary real = errors_of(report.cases, "real"); real.cases > 0)
    result.push_back(at_most("real compute: median absolute error", real.median, kRealMedian));
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
  const auto add = [&](const std::string& compute, const std::string& distance, const ErrorSummary& errors) {
    table.add({compute, distance, std::to_string(errors.cases), percent_text(errors.median),
               percent_text(errors.p90), percent_text(errors.worst)});
  };
  const std::vector<LabGroup> groups = group_errors(cases);
  for (const std::string compute : kLabComputes) {
    for (const LabGroup& group : groups)
      if (group.compute == compute) add(compute, group.distance, group.errors);
    if (const ErrorSummary all = errors_of(cases, compute); all.cases > 0) add(compute, "all", all);
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
  std::string text = "\nThe machine: to copy 1 MiB took " + to_text(Seconds(machine.calibrated_copy_s)) +
                     " after the calibration and " + to_text(Seconds(copy.low)) + " to " +
                     to_text(Seconds(copy.high)) + " while the cases ran\n";
  if (machine.drift() > kSteadyMachine)
    text += "  Its speed moved by " + percent_text(machine.drift()) +
            ": errors are the machine's, too. Best is one that nobody else uses.\n";
  return text;
}

}  // namespace

std::string to_text(const LabReport& report) {
  std::string text =
      "Absolute error of the step time; calibrated with " + std::to_string(report.calibration.world_size) +
      " hosts at " + link_rate_text(report.calibration.link_rate_bytes_per_s) + " only:\n\n" +
      groups_text(report.cases) + "\nEvery case, the worst first:\n\n" +
      cases_text(worst_first(report.cases),
                 {"compute", "model", "strategy", "ranks", "batch", "cluster", "distance", "measured",
                  "launches", "low", "high", "predicted", "error", "in range", "better trivial predictors"});
  if (!report.perturbations.empty())
    text += "\nWhat a change does to the step:\n\n" + perturbations_text(report.perturbations);
  text += "\nOrder of strategies: " + order_text(order_of_strategies(report.cases)) +
          machine_text(report.machine) + "\nGoals:\n";
  for (const LabGoal& goal : goals(report))
    text += (goal.met ? "  met     " : "  MISSED  ") + goal.text + "\n";
  return text;
}

}  // namespace stepcast
