#include "sim/strategies/local_step.hpp"
#include "sim/strategies/strategy.hpp"

namespace stepcast::all_reduce_strategy {
namespace {

/// One blocking all-reduce per parameter tensor after the backward, in the order of parameters(), each
/// followed by the division by world_size: the simplest loop.
///
/// A rank sends 2 (n - 1)/n of the gradient bytes per step. Nothing overlaps: every operation waits for the
/// one before. At world size 1 there is neither communication nor division. Experts of a single rank are only
/// divided.
Schedule build(const Model& model, const TrainingConfig& config, StrategyOptions& /*options*/) {
  LocalStep step(model, config);
  step.train();
  if (config.world_size > 1) {
    for (const int tensor : model.trained()) {
      const Parameter& parameter = model.parameters[tensor];
      if (model.replicas(parameter, config.world_size) > 1)
        step.add_collective("all_reduce/" + parameter.name,
                            {.kind = CollectiveKind::kAllReduce,
                             .message = parameter.accumulated(),
                             .payload = GradientArray{tensor}},
                            step.latest());
      step.add({.name = "divide/" + parameter.name,
                .action = Combine{.tensor = tensor, .inputs = 1, .scale = 1.0 / config.world_size},
                .after = step.latest(),
                .memory_traffic = 2.0 * parameter.accumulated()});
    }
  }
  step.optimizer(step.latest());
  Schedule schedule = make_schedule("all_reduce", config);
  schedule.programs.push_back(step.take());
  return schedule;
}

const Registration<Strategy> kAllReduce(strategies(), "all_reduce",
                                        "one blocking all-reduce per tensor after the backward", {build}, 20);

}  // namespace
}  // namespace stepcast::all_reduce_strategy
