#include <algorithm>

#include "core/error.hpp"
#include "core/load.hpp"
#include "sim/evidence/lab_report.hpp"

namespace stepcast {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(LabCalibration, world_size, link_rate_bytes_per_s, largest_bytes)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(LabMachine, calibrated_copy_s, copy_s)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(LabPerturbation, name, measured_change, measured_change_low,
                                   measured_change_high, predicted_change)

namespace {

void require_one_of(const char* key, const std::string& found, const auto& values) {
  std::string known;
  for (const char* value : values) {
    if (found == value) return;
    known += std::string(known.empty() ? "'" : ", '") + value + "'";
  }
  throw InputError(std::string("key '") + key + "' of a case: '" + found + "' is none of " + known);
}

}  // namespace

void to_json(nlohmann::json& json, const LabReport& report) {
  const StrategyOrder order = order_of_strategies(report.cases);
  json = accuracy_json(accuracy_of(report.cases));
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
  const auto add_errors = [&](const char* list, const std::string& compute, const ErrorSummary& errors) {
    if (errors.cases == 0) return;
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
