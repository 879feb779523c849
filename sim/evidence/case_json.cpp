#include <array>
#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "sim/evidence/compare.hpp"

namespace stepcast {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(CaseFile, path, sha1, date, load_average, step_time_s)

namespace {

/// What a case tells of its configuration.
constexpr std::array kTrainingKeys{"model",         "strategy", "world_size", "batch",   "data_parallel",
                                   "micro_batches", "options",  "threads",    "cluster", "compute"};

nlohmann::json trivial_json(const Case& one) {
  const std::map<std::string, double> better = better_trivial_predictors(one);
  nlohmann::json all = nlohmann::json::object();
  for (const auto& [name, value] : one.trivial) {
    all[name] = {{one.quantity, value}, {"better", better.contains(name)}};
    if (one.measured && one.measured->value > 0.0) all[name]["relative_error"] = one.trivial_error(value);
  }
  return all;
}

/// Of a training: what it is and how its parts were predicted.
void add_training(nlohmann::json& json, const Case& one) {
  const nlohmann::json configuration = one.configuration;
  for (const char* key : kTrainingKeys) json[key] = configuration.at(key);
  json.update({{"label", one.name},
               {"phases", nlohmann::json::object()},
               {"memory", nlohmann::json::array()},
               {"launches", one.launches}});
  if (one.prediction) json["prediction"] = {{"path", one.prediction->path}, {"sha1", one.prediction->sha1}};
  for (const PhaseError& phase : one.phases)
    json["phases"][phase.name] = {
        {"measured_s", phase.measured_s},
        {"predicted_s", phase.predicted_s},
        {"error_over_step", (phase.predicted_s - phase.measured_s) / one.measured->value}};
  for (const MemoryError& rank : one.memory)
    json["memory"].push_back({{"rank", rank.rank},
                              {"measured_peak_bytes", rank.measured_bytes},
                              {"predicted_peak_bytes", rank.predicted_bytes},
                              {"relative_error", rank.relative_error()}});
  if (one.distance.empty()) return;
  json["distance"] = one.distance;
  json["link_rate_bytes_per_s"] = one.link_rate_bytes_per_s;
  json["baseline_step_time_s"] = one.baseline_step_time_s;
}

}  // namespace

void to_json(nlohmann::json& json, const Case& one) {
  json = {{"quantity", one.quantity},
          {"standing", to_text(one.role)},
          {"relative_error", nullptr},
          {"trivial", trivial_json(one)}};
  if (one.measured) {
    json["measured_" + one.quantity] = one.measured->value;
    json["measured_low_s"] = one.measured->low;
    json["measured_high_s"] = one.measured->high;
  }
  if (one.predicted) json["predicted_" + one.quantity] = one.predicted->value;
  if (one.blind) {
    json["blind_" + one.quantity] = one.blind->value;
    if (one.measured) json["blind_relative_error"] = one.trivial_error(one.blind->value);
  }
  if (one.has_error()) {
    json["relative_error"] = one.relative_error();
    json["inside_launch_range"] = one.inside_launch_range();
  }
  if (one.has_error_at_equal_speed()) {
    json["measured_at_equal_speed_s"] = one.measured_at_equal_speed->value;
    json["relative_error_at_equal_speed"] = one.error_at_equal_speed();
  }
  if (const auto error = one.error_over_exposed()) json["error_over_exposed_communication"] = *error;
  if (!one.machines.empty()) json["machine"] = one.machines;
  if (one.source.empty()) add_training(json, one);
}

void from_json(const nlohmann::json& json, Case& one) {
  one = {};
  json.at("label").get_to(one.name);
  nlohmann::json configuration = Configuration{.label = one.name};
  for (const char* key : kTrainingKeys) configuration[key] = json.at(key);
  configuration.get_to(one.configuration);
  one.measured = {json.at("measured_step_time_s"), json.at("measured_low_s"), json.at("measured_high_s")};
  one.predicted = estimate_of({json.at("predicted_step_time_s")});
  for (const auto& [name, trivial] : json.at("trivial").items())
    one.trivial[name] = trivial.at("step_time_s").get<double>();
  for (const auto& [name, part] : breakdown_parts())
    if (const auto phase = json.at("phases").find(name); phase != json.at("phases").end())
      one.phases.push_back({name, phase->at("measured_s"), phase->at("predicted_s")});
  for (const auto& rank : json.at("memory"))
    one.memory.push_back({rank.at("rank"), rank.at("measured_peak_bytes"), rank.at("predicted_peak_bytes")});
  json.at("launches").get_to(one.launches);
  if (json.contains("prediction"))
    one.prediction = CaseFile{json["prediction"].at("path"), json["prediction"].at("sha1")};
  if (json.contains("measured_at_equal_speed_s"))
    one.measured_at_equal_speed = estimate_of({json["measured_at_equal_speed_s"]});
  if (json.contains("machine")) json["machine"].get_to(one.machines);
  one.distance = json.value("distance", "");
  one.link_rate_bytes_per_s = json.value("link_rate_bytes_per_s", 0.0);
  one.baseline_step_time_s = json.value("baseline_step_time_s", 0.0);
  if (one.measured->value <= 0.0 || one.predicted->value <= 0.0)
    throw InputError("keys 'measured_step_time_s' and 'predicted_step_time_s' of " + describe(one) +
                     ": a step takes more than 0 s");
}

nlohmann::json accuracy_json(const Accuracy& accuracy) {
  nlohmann::json json = errors_json(accuracy.errors);
  json["trivial"] = nlohmann::json::object();
  for (const auto& [name, trivial] : accuracy.trivial) {
    json["trivial"][name] = errors_json(trivial.errors);
    json["trivial"][name]["median_of_predictions_over_same_cases"] = trivial.predictions;
  }
  return json;
}

nlohmann::json accuracy_json(const std::vector<Case>& cases) {
  nlohmann::json json = accuracy_json(accuracy_of(cases));
  if (const std::string verdict = machine_verdict(cases); !verdict.empty()) {
    json["at_equal_speed"] = errors_json(errors_at_equal_speed(cases));
    json["machine_verdict"] = verdict;
  }
  if (const Errors errors = errors_over_exposed(cases); errors.count > 0) {
    json["over_exposed_communication"] = errors_json(errors);
    json["over_exposed_communication"]["least_exposed_part"] = Case::kMinExposedFraction;
    json["over_exposed_communication"]["cases_without"] = accuracy_of(cases).errors.count - errors.count;
  }
  return json;
}

nlohmann::json speedups_json(const std::vector<Speedup>& all) {
  nlohmann::json list = nlohmann::json::array();
  for (const Speedup& speedup : all) {
    const Configuration& c = speedup.scaled->configuration;
    nlohmann::json one = {{"model", c.model},
                          {"strategy", c.strategy},
                          {"label", speedup.scaled->name},
                          {"cluster", c.cluster},
                          {"compute", c.compute},
                          {"world_size", c.world_size},
                          {"batch", c.batch},
                          {"threads", c.threads},
                          {"scaling", speedup.strong ? "strong" : "weak"},
                          {"baseline", describe(speedup.baseline)}};
    if (speedup.measured) one["measured_speedup"] = speedup.measured->value;
    if (speedup.predicted) one["predicted_speedup"] = *speedup.predicted;
    if (speedup.measured && speedup.predicted) one["relative_error"] = speedup.relative_error();
    list.push_back(one);
  }
  return list;
}

namespace {

nlohmann::json pair_json(const EnginePair& pair) {
  const auto side = [](const Case& one) {
    return nlohmann::json{{"step_time_s", one.measured->value},
                          {"low_s", one.measured->low},
                          {"high_s", one.measured->high},
                          {"launches", one.launches.size()}};
  };
  nlohmann::json one = {{"schedule", side(*pair.schedule)},
                        {"reference", side(*pair.reference)},
                        {"relative_difference", pair.relative_difference()},
                        {"ranges_overlap", pair.ranges_overlap()}};
  const nlohmann::json training = *pair.schedule;
  for (const char* key : {"model", "strategy", "world_size", "batch", "micro_batches", "options", "threads"})
    one[key] = training.at(key);
  if (const std::optional<bool> same = pair.same_buckets()) one["same_buckets"] = *same;
  return one;
}

}  // namespace

nlohmann::json comparison_json(const std::vector<Case>& cases, const std::vector<Speedup>& speedups,
                               const std::vector<EnginePair>& pairs) {
  nlohmann::json json = accuracy_json(cases);
  json["cases"] = cases;
  json["speedups"] = speedups_json(speedups);
  for (const EnginePair& pair : pairs) json["engines"].push_back(pair_json(pair));
  return json;
}

}  // namespace stepcast
