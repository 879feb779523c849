#include "sim/core/compare_engines.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

namespace stepcast {

double EnginePair::relative_difference() const {
  return schedule->measured_step_time_s() / reference->measured_step_time_s() - 1.0;
}

bool EnginePair::ranges_overlap() const {
  return schedule->measured_low_s() <= reference->measured_high_s() &&
         reference->measured_low_s() <= schedule->measured_high_s();
}

std::optional<bool> EnginePair::same_buckets() const {
  std::set<std::string> layouts;
  for (const Case* engine : {schedule, reference})
    for (const ResultFile* launch : engine->launches) {
      const auto note = launch->result.notes.find("buckets");
      if (note == launch->result.notes.end()) return std::nullopt;
      layouts.insert(note->second);
    }
  return layouts.size() == 1;
}

std::vector<EnginePair> engine_pairs(const std::vector<Case>& cases) {
  std::vector<EnginePair> pairs;
  for (const Case& reference : cases) {
    if (reference.configuration.engine != "reference" || reference.launches.empty()) continue;
    Configuration wanted = reference.configuration;
    wanted.engine = "schedule";
    const auto schedule = std::find_if(cases.begin(), cases.end(), [&](const Case& one) {
      return !one.launches.empty() && same_case(one.configuration, wanted);
    });
    if (schedule != cases.end()) pairs.push_back({&*schedule, &reference});
  }
  return pairs;
}

nlohmann::json engine_pair_json(const EnginePair& pair) {
  const Configuration& c = pair.schedule->configuration;
  const auto side = [](const Case& one) {
    return nlohmann::json{{"step_time_s", one.measured_step_time_s()},
                          {"low_s", one.measured_low_s()},
                          {"high_s", one.measured_high_s()},
                          {"launches", one.launches.size()}};
  };
  nlohmann::json json = {{"model", c.model},
                         {"strategy", c.strategy},
                         {"world_size", c.world_size},
                         {"batch", c.batch},
                         {"micro_batches", c.micro_batches},
                         {"options", c.extra},
                         {"threads", c.threads},
                         {"schedule", side(*pair.schedule)},
                         {"reference", side(*pair.reference)},
                         {"relative_difference", pair.relative_difference()},
                         {"ranges_overlap", pair.ranges_overlap()}};
  if (const std::optional<bool> same = pair.same_buckets()) json["same_buckets"] = *same;
  return json;
}

}  // namespace stepcast
