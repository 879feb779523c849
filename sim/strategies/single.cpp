#include "core/error.hpp"
#include "sim/strategies/local_step.hpp"
#include "sim/strategies/strategy.hpp"

namespace stepcast::single_strategy {
namespace {

/// One rank trains alone: the baseline of every speedup.
Schedule build(const Model& model, const TrainingConfig& config, StrategyOptions& /*options*/) {
  if (config.world_size != 1)
    throw UsageError("strategy 'single' trains on one rank; world size is {}", config.world_size);
  LocalStep step(model, config);
  step.train();
  step.optimizer();
  Schedule schedule = make_schedule("single", config);
  schedule.programs.push_back(step.take());
  return schedule;
}

const Registration<Strategy> kSingle(strategies(), "single", "one rank, no communication",
                                     {.build = build, .dimensions = {"tensor", "expert", "expert_tensor"}},
                                     0);

}  // namespace
}  // namespace stepcast::single_strategy
