#include <cmath>

#include "sim/core/error.hpp"
#include "sim/core/lab_report.hpp"
#include "sim/core/load.hpp"
#include "sim/core/statistics.hpp"

namespace stepcast {
namespace {

/// The value whose text stands under `key`.
template <class Value, std::size_t N>
Value named(const nlohmann::json& json, const char* key, const std::array<Value, N>& values) {
  const auto found = json.at(key).get<std::string>();
  std::string known;
  for (const Value value : values) {
    if (to_text(value) == found) return value;
    known += (known.empty() ? "'" : ", '") + to_text(value) + "'";
  }
  throw InputError(std::string("key '") + key + "' of a case: '" + found + "' is none of " + known);
}

nlohmann::json case_json(const LabCase& one) {
  nlohmann::json json = static_cast<const ComparedCase&>(one);
  json["cluster"] = one.cluster;
  json["strategy_text"] = one.strategy_text;
  json["compute"] = to_text(one.compute);
  json["distance"] = to_text(one.distance);
  json["link_rate_bytes_per_s"] = one.link_rate_bytes_per_s;
  json["baseline_step_time_s"] = one.baseline_step_time_s;
  return json;
}

LabCase read_case(const nlohmann::json& json) {
  LabCase one;
  json.get_to(static_cast<ComparedCase&>(one));
  json.at("cluster").get_to(one.cluster);
  json.at("strategy_text").get_to(one.strategy_text);
  one.compute = named(json, "compute", kLabComputes);
  one.distance = named(json, "distance", kLabDistances);
  json.at("link_rate_bytes_per_s").get_to(one.link_rate_bytes_per_s);
  json.at("baseline_step_time_s").get_to(one.baseline_step_time_s);
  if (one.measured_step_time_s <= 0.0 || one.predicted_step_time_s <= 0.0)
    throw InputError("keys 'measured_step_time_s' and 'predicted_step_time_s' of " + describe(one) +
                     ": a step takes more than 0 s");
  return one;
}

nlohmann::json summary_json(const ErrorSummary& errors) {
  return {{"cases", errors.cases}, {"median", errors.median}, {"p90", errors.p90}, {"worst", errors.worst}};
}

nlohmann::json groups_json(const std::vector<LabCase>& cases) {
  nlohmann::json json = nlohmann::json::array();
  for (const LabGroup& group : group_errors(cases)) {
    json.push_back(summary_json(group.errors));
    json.back()["compute"] = to_text(group.compute);
    json.back()["distance"] = to_text(group.distance);
  }
  return json;
}

nlohmann::json totals_json(const std::vector<LabCase>& cases) {
  nlohmann::json json = nlohmann::json::array();
  for (const LabCompute compute : kLabComputes) {
    const ErrorSummary errors = summarize(cases, compute);
    if (errors.cases == 0) continue;
    json.push_back(summary_json(errors));
    json.back()["compute"] = to_text(compute);
  }
  return json;
}

nlohmann::json perturbation_json(const LabPerturbation& one) {
  return {{"name", one.name},
          {"measured_change", one.measured_change},
          {"measured_change_low", one.measured_change_low},
          {"measured_change_high", one.measured_change_high},
          {"predicted_change", one.predicted_change},
          {"error", one.error()},
          {"spread", one.spread()},
          {"within", one.within()}};
}

LabPerturbation read_perturbation(const nlohmann::json& json) {
  return {json.at("name"), json.at("measured_change"), json.at("measured_change_low"),
          json.at("measured_change_high"), json.at("predicted_change")};
}

nlohmann::json speedups_json(const std::vector<LabCase>& cases) {
  nlohmann::json json = nlohmann::json::array();
  for (const LabCase& one : cases) {
    if (one.world_size == 1 || one.baseline_step_time_s <= 0.0) continue;
    json.push_back({{"model", one.model},
                    {"strategy", one.strategy},
                    {"strategy_text", one.strategy_text},
                    {"cluster", one.cluster},
                    {"compute", to_text(one.compute)},
                    {"world_size", one.world_size},
                    {"batch", one.batch},
                    {"threads", one.threads},
                    {"scaling", one.data_parallel == 1 ? "strong" : "weak"},
                    {"baseline", "one rank, batch " + std::to_string(one.batch)},
                    {"measured_speedup", one.measured_speedup()},
                    {"predicted_speedup", one.predicted_speedup()},
                    {"relative_error", one.predicted_speedup() / one.measured_speedup() - 1.0}});
  }
  return json;
}

/// The medians over all cases that every comparison carries.
void add_accuracy(nlohmann::json& json, const std::vector<LabCase>& cases) {
  if (cases.empty()) return;
  std::vector<double> errors;
  std::map<std::string, std::vector<double>> trivial;
  for (const LabCase& one : cases) {
    errors.push_back(std::abs(one.relative_error()));
    for (const auto& [name, time] : one.trivial_step_time_s)
      trivial[name].push_back(std::abs(time / one.measured_step_time_s - 1.0));
  }
  json["median_absolute_relative_error"] = median(errors);
  json["worst_absolute_relative_error"] = quantile(errors, 1.0);
  json["trivial_median_absolute_relative_error"] = nlohmann::json::object();
  for (const auto& [name, values] : trivial)
    json["trivial_median_absolute_relative_error"][name] = median(values);
}

}  // namespace

void to_json(nlohmann::json& json, const LabReport& report) {
  const StrategyOrder order = order_of_strategies(report.cases);
  json = {{"context", report.context},
          {"calibration",
           {{"world_size", report.calibration.world_size},
            {"link_rate_bytes_per_s", report.calibration.link_rate_bytes_per_s},
            {"largest_bytes", report.calibration.largest_bytes}}},
          {"machine",
           {{"calibrated_copy_s", report.machine.calibrated_copy_s},
            {"copy_s", report.machine.copy_s},
            {"drift", report.machine.drift()}}},
          {"cases", nlohmann::json::array()},
          {"groups", groups_json(report.cases)},
          {"totals", totals_json(report.cases)},
          {"speedups", speedups_json(report.cases)},
          {"perturbations", nlohmann::json::array()},
          {"order", {{"pairs", order.pairs}, {"wrong", order.wrong}}},
          {"goals", nlohmann::json::array()}};
  for (const LabCase& one : report.cases) json["cases"].push_back(case_json(one));
  for (const LabPerturbation& one : report.perturbations)
    json["perturbations"].push_back(perturbation_json(one));
  for (const LabGoal& goal : goals(report)) json["goals"].push_back({{"text", goal.text}, {"met", goal.met}});
  add_accuracy(json, report.cases);
}

void from_json(const nlohmann::json& json, LabReport& report) {
  report = {};
  json.at("context").get_to(report.context);
  const nlohmann::json& calibration = json.at("calibration");
  calibration.at("world_size").get_to(report.calibration.world_size);
  calibration.at("link_rate_bytes_per_s").get_to(report.calibration.link_rate_bytes_per_s);
  calibration.at("largest_bytes").get_to(report.calibration.largest_bytes);
  json.at("machine").at("calibrated_copy_s").get_to(report.machine.calibrated_copy_s);
  json.at("machine").at("copy_s").get_to(report.machine.copy_s);
  for (const nlohmann::json& one : json.at("cases")) report.cases.push_back(read_case(one));
  for (const nlohmann::json& one : json.at("perturbations"))
    report.perturbations.push_back(read_perturbation(one));
}

LabReport load_lab_report(const std::string& path) {
  const nlohmann::json json = load_json(path, kLabSchema);
  try {
    return json.get<LabReport>();
  } catch (const nlohmann::json::exception& error) {
    throw InputError(path + ": is not a valid " + kLabSchema + " file: " + error.what());
  } catch (const InputError& error) {
    throw InputError(path + ": " + error.what());
  }
}

}  // namespace stepcast
