#include "sim/strategies/strategy.hpp"

#include "sim/core/error.hpp"

namespace stepcast {

Registry<Strategy>& strategies() {
  static Registry<Strategy> registry("strategy");
  return registry;
}

Schedule build_schedule(const std::string& strategy, const Model& model, const TrainingConfig& config) {
  const Strategy& found = strategies().find(strategy);
  const auto check = [](const char* what, int value) {
    if (value < 1)
      throw UsageError(std::string(what) + " must be at least 1, found " + std::to_string(value));
  };
  check("world size", config.world_size);
  check("batch", config.batch);
  Schedule schedule = found.build(model, config);
  validate(schedule);
  return schedule;
}

}  // namespace stepcast
