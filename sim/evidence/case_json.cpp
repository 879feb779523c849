#include <nlohmann/json.hpp>

#include "core/ranges.hpp"
#include "sim/evidence/compare.hpp"

namespace stepcast {

namespace {

using Json = nlohmann::json;

/// `json` of those keys of a configuration.
void add_configuration(Json& json, const Json& configuration, std::initializer_list<const char*> keys) {
  for (const char* key : keys) json[key] = configuration.at(key);
}

/// Keys of a training: its configuration and the errors of its parts.
void add_training(Json& json, const Case& one) {
  add_configuration(json, one.configuration,
                    {"model", "strategy", "world_size", "batch", "data_parallel", "micro_batches", "options",
                     "threads", "cluster", "compute"});
  json.update({{"label", one.name},
               {"phases", Json::object()},
               {"memory", Json::array()},
               {"launches", Json::array()}});
  for (const ResultFile* launch : one.launches)
    json["launches"].push_back({{"path", launch->path},
                                {"sha1", launch->sha1},
                                {"date", launch->result.context.date},
                                {"load_average", launch->result.context.load_average},
                                {"step_time_s", launch->result.median_step_time_s()}});
  if (one.prediction) json["prediction"] = {{"path", one.prediction->path}, {"sha1", one.prediction->sha1}};
  for (const auto& [name, measured_s, predicted_s] : one.phases)
    json["phases"][name] = {{"measured_s", measured_s},
                            {"predicted_s", predicted_s},
                            {"error_over_step", (predicted_s - measured_s) / one.measured->value}};
  for (const MemoryError& rank : one.memory)
    json["memory"].push_back({{"rank", rank.rank},
                              {"measured_peak_bytes", rank.measured_bytes},
                              {"predicted_peak_bytes", rank.predicted_bytes},
                              {"relative_error", rank.relative_error()}});
}

Json speedups_json(const std::vector<Speedup>& all) {
  return transformed(all, [](const Speedup& speedup) {
    Json one{{"label", speedup.scaled->name},
             {"scaling", speedup.strong ? "strong" : "weak"},
             {"baseline", describe(speedup.baseline)}};
    add_configuration(one, speedup.scaled->configuration,
                      {"model", "strategy", "cluster", "compute", "world_size", "batch", "threads"});
    if (speedup.measured) one["measured_speedup"] = speedup.measured->value;
    if (speedup.predicted) one["predicted_speedup"] = *speedup.predicted;
    if (speedup.measured && speedup.predicted) one["relative_error"] = speedup.relative_error();
    return one;
  });
}

Json pair_json(const EnginePair& pair) {
  const auto side = [](const Case& one) {
    return Json{{"step_time_s", one.measured->value},
                {"low_s", one.measured->low},
                {"high_s", one.measured->high},
                {"launches", one.launches.size()}};
  };
  Json one = {{"schedule", side(*pair.schedule)},
              {"reference", side(*pair.reference)},
              {"relative_difference", pair.relative_difference()},
              {"ranges_overlap", pair.ranges_overlap()}};
  add_configuration(one, pair.schedule->configuration,
                    {"model", "strategy", "world_size", "batch", "micro_batches", "options", "threads"});
  if (const std::optional<bool> same = pair.same_buckets()) one["same_buckets"] = *same;
  return one;
}

}  // namespace

void to_json(Json& json, const Case& one) {
  json = {{"relative_error", nullptr}, {"trivial", Json::object()}};
  const auto better = better_trivial_predictors(one);
  for (const auto& [name, value] : one.trivial) {
    Json& trivial = json["trivial"][name] = {{"step_time_s", value}, {"better", better.contains(name)}};
    if (const auto error = one.error_of(value)) trivial["relative_error"] = *error;
  }
  if (one.measured)
    json.update({{"measured_step_time_s", one.measured->value},
                 {"measured_low_s", one.measured->low},
                 {"measured_high_s", one.measured->high}});
  if (one.predicted) json["predicted_step_time_s"] = *one.predicted;
  if (one.has_error())
    json.update(
        {{"relative_error", one.relative_error()}, {"inside_launch_range", one.inside_launch_range()}});
  if (const auto error = one.error_at_equal_speed())
    json.update({{"measured_at_equal_speed_s", one.measured_at_equal_speed->value},
                 {"relative_error_at_equal_speed", *error}});
  if (const auto error = one.error_over_exposed()) json["error_over_exposed_communication"] = *error;
  if (!one.machines.empty()) json["machine"] = one.machines;
  add_training(json, one);
}

Json accuracy_json(const std::vector<Case>& cases) {
  const Accuracy accuracy = accuracy_of(cases);
  Json json = errors_json(accuracy.errors);
  json["trivial"] = Json::object();
  for (const auto& [name, trivial] : accuracy.trivial) {
    json["trivial"][name] = errors_json(trivial.errors);
    json["trivial"][name]["median_of_predictions_over_same_cases"] = trivial.predictions;
  }
  if (const std::string verdict = machine_verdict(cases); !verdict.empty())
    json.update({{"at_equal_speed", errors_json(errors_by(cases, &Case::error_at_equal_speed))},
                 {"machine_verdict", verdict}});
  if (const Errors errors = errors_by(cases, &Case::error_over_exposed); errors.count > 0) {
    Json& exposed = json["over_exposed_communication"] = errors_json(errors);
    exposed["least_exposed_part"] = Case::kMinExposedFraction;
    exposed["cases_without"] = accuracy.errors.count - errors.count;
  }
  return json;
}

Json comparison_json(const std::vector<Case>& cases, const std::vector<Speedup>& speedups,
                     const std::vector<EnginePair>& pairs) {
  Json json = accuracy_json(cases);
  json["cases"] = cases;
  json["speedups"] = speedups_json(speedups);
  for (const EnginePair& pair : pairs) json["engines"].push_back(pair_json(pair));
  return json;
}

}  // namespace stepcast
