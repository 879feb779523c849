#include <nlohmann/json.hpp>

#include "sim/core/compare.hpp"
#include "sim/core/compared_case.hpp"

namespace stepcast {
namespace {

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
  for (const Case& one : cases) json["cases"].push_back(compared(one, cases));
  for (const Speedup& speedup : speedups) json["speedups"].push_back(speedup_json(speedup));
  return json;
}

}  // namespace stepcast
