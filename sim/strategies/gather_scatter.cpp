#include <algorithm>
#include <string>
#include <vector>

#include "sim/strategies/local_step.hpp"
#include "sim/strategies/strategy.hpp"

namespace stepcast::gather_scatter_strategy {
namespace {

constexpr int kRoot = 0;

/// Program of one rank. The root of a group holds the gathered gradients and takes their mean.
Program build_program(const Model& model, const TrainingConfig& config, int rank) {
  LocalStep step(model, config);
  step.train();
  for (const int tensor : config.world_size > 1 ? model.trained() : std::vector<int>{}) {
    const Parameter& parameter = model.parameters[tensor];
    const int ranks = model.replicas(parameter, config.world_size);
    const Bytes message = static_cast<double>(ranks) * parameter.accumulated();
    const auto exchange = [&](CollectiveKind kind) {
      if (ranks > 1)
        step.add_collective(std::string(to_text(kind)) + "/" + parameter.name,
                            {kind, message, 0, kRoot, GradientArray{tensor}}, step.latest());
    };
    exchange(CollectiveKind::kGather);
    if (rank < config.world_size / ranks) {
      if (ranks > 1) step.hold(MemoryCategory::kCommunication, message);
      step.add({.name = "mean/" + parameter.name,
                .action = Combine{.tensor = tensor, .inputs = ranks, .scale = 1.0 / config.world_size},
                .after = step.latest(),
                .memory_traffic = message + parameter.accumulated()});
    }
    exchange(CollectiveKind::kScatter);
  }
  step.optimizer(step.latest());
  return step.take();
}

/// After the backward, for each parameter tensor in the order of parameters(): rank 0 gathers the gradients
/// of all ranks, takes the mean, and scatters it. Every operation waits for the one before.
///
/// Rank 0 receives and sends (n - 1) times the gradient bytes per step, every other rank once, so that it
/// does not scale. At world size 1 there is neither communication nor mean. For an expert on m ranks the
/// first of those is the root, and the sum is divided by all n; an expert on a single rank is only divided.
Schedule build(const Model& model, const TrainingConfig& config, StrategyOptions& /*options*/) {
  Schedule schedule = make_schedule("gather_scatter", config);
  const int experts = model.parallel.expert_ranks();
  // Rank 0 is the root of all groups; each rank with the same experts is the root of its own.
  for (int rank = 0; rank < std::min(config.world_size, 1 + experts); ++rank) {
    if (rank < 2 || rank == experts) schedule.programs.push_back(build_program(model, config, rank));
    schedule.program_of_rank[rank] = static_cast<int>(schedule.programs.size()) - 1;
  }
  std::fill(schedule.program_of_rank.begin() + std::min(config.world_size, experts),
            schedule.program_of_rank.end(), static_cast<int>(schedule.programs.size()) - 1);
  return schedule;
}

const Registration<Strategy> kGatherScatter(
    strategies(), "gather_scatter", "rank 0 gathers each tensor's gradients, averages and scatters them back",
    {build}, 10);

}  // namespace
}  // namespace stepcast::gather_scatter_strategy
