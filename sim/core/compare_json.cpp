#include <cmath>
#include <nlohmann/json.hpp>

#include "sim/core/compare.hpp"

namespace stepcast {
namespace {

nlohmann::json trivial_json(const Case& one, const std::vector<Case>& cases) {
  nlohmann::json json = nlohmann::json::object();
  const double error = std::abs(one.relative_error());
  for (const auto& [name, time] : trivial_predictions(one, cases)) {
    const double trivial_error = time / one.measured_step_time_s() - 1.0;
    json[name] = {{"step_time_s", time},
                  {"relative_error", trivial_error},
                  {"better", std::abs(trivial_error) < error}};
  }
  return json;
}

nlohmann::json case_json(const Case& one, const std::vector<Case>& cases) {
  const Configuration& c = one.configuration;
  nlohmann::json launches = nlohmann::json::array();
  for (const ResultFile* launch : one.launches)
    launches.push_back({{"path", launch->path},
                        {"sha1", launch->sha1},
                        {"date", launch->result.context.date},
                        {"load_average", launch->result.context.load_average},
                        {"step_time_s", launch->result.median_step_time_s()}});
  nlohmann::json phases = nlohmann::json::object();
  for (const PhaseError& phase : phase_errors(one))
    phases[phase.name] = {
        {"measured_s", phase.measured_s},
        {"predicted_s", phase.predicted_s},
        {"error_over_step", (phase.predicted_s - phase.measured_s) / one.measured_step_time_s()}};
  nlohmann::json memory = nlohmann::json::array();
  for (const MemoryError& rank : memory_errors(one))
    memory.push_back({{"rank", rank.rank},
                      {"measured_peak_bytes", rank.measured_bytes},
                      {"predicted_peak_bytes", rank.predicted_bytes},
                      {"relative_error", rank.relative_error()}});
  return {{"model", c.model},
          {"strategy", c.strategy},
          {"world_size", c.world_size},
          {"batch", c.batch},
          {"micro_batches", c.micro_batches},
          {"options", c.extra},
          {"threads", c.threads},
          {"memory", memory},
          {"measured_step_time_s", one.measured_step_time_s()},
          {"measured_low_s", one.measured_low_s()},
          {"measured_high_s", one.measured_high_s()},
          {"predicted_step_time_s", one.predicted_step_time_s()},
          {"relative_error", one.relative_error()},
          {"inside_launch_range", one.inside_launch_range()},
          {"trivial", trivial_json(one, cases)},
          {"phases", phases},
          {"launches", launches},
          {"prediction", {{"path", one.prediction->path}, {"sha1", one.prediction->sha1}}}};
}

nlohmann::json speedup_json(const Speedup& speedup) {
  const Configuration& c = speedup.scaled->configuration;
  nlohmann::json json = {{"model", c.model},
                         {"strategy", c.strategy},
                         {"world_size", c.world_size},
                         {"batch", c.batch},
                         {"threads", c.threads},
                         {"scaling", speedup.strong ? "strong" : "weak"},
                         {"baseline", describe(speedup.baseline->configuration)}};
  if (speedup.measured > 0.0) json["measured_speedup"] = speedup.measured;
  if (speedup.predicted > 0.0) json["predicted_speedup"] = speedup.predicted;
  if (speedup.measured > 0.0 && speedup.predicted > 0.0) json["relative_error"] = speedup.relative_error();
  return json;
}

}  // namespace

nlohmann::json comparison_json(const std::vector<Case>& cases, const std::vector<Speedup>& speedups) {
  nlohmann::json json = {{"cases", nlohmann::json::array()}, {"speedups", nlohmann::json::array()}};
  if (!cases.empty()) {
    const Accuracy accuracy = summarize(cases);
    json["median_absolute_relative_error"] = accuracy.median_absolute_relative_error;
    json["worst_absolute_relative_error"] = accuracy.worst_absolute_relative_error;
    json["trivial_median_absolute_relative_error"] = accuracy.trivial_median_absolute_relative_error;
  }
  for (const Case& one : cases) json["cases"].push_back(case_json(one, cases));
  for (const Speedup& speedup : speedups) json["speedups"].push_back(speedup_json(speedup));
  return json;
}

}  // namespace stepcast
