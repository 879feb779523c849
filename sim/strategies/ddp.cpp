#include <array>
#include <string>
#include <utility>
#include <vector>

#include "sim/strategies/bucketed_reduction.hpp"
#include "sim/strategies/local_step.hpp"
#include "sim/strategies/strategy.hpp"
#include "sim/strategies/unit_step.hpp"
#include "sim/strategies/whole_parameters.hpp"

namespace stepcast::ddp_strategy {
namespace {

/// Broadcasts of rank 0's buffers, one per dtype, both in flight at once.
std::vector<int> broadcast_buffers(LocalStep& step) {
  constexpr std::array<const char*, 2> kTypes{"float32", "int64"};
  std::vector<int> calls;
  const std::vector<int> before = step.latest();
  for (int dtype = 0; dtype < 2; ++dtype) {
    const Bytes size = step.model().buffer_bytes(dtype);
    if (size <= Bytes(0)) continue;
    calls.push_back(step.add_collective(
        std::string("broadcast/buffers.") + kTypes[dtype],
        {.kind = CollectiveKind::kBroadcast, .message = size, .payload = BufferArray{dtype}}, before));
  }
  return calls;
}

/// `--accumulate every`. \throws UsageError without stage 2, or for shard-then-replicas
bool reduces_each_micro_batch(StrategyOptions& options, const TrainingConfig& config, int stage) {
  if (stage != 2) {
    options.refuse({"accumulate"}, "without --zero 2, which frees gradients");
    return false;
  }
  const std::string accumulate = options.text("accumulate");
  if (accumulate == kShardThenReplicas)
    throw UsageError("--accumulate {} needs replicas of shards (fsdp); take every", accumulate);
  if (config.micro_batches == 1) options.drop({"accumulate"});
  return config.micro_batches > 1 && accumulate == "every";
}

/// PyTorch's DistributedDataParallel from the second step on (the first uses one bucket for everything).
///
/// Before the forward, rank 0's buffers are broadcast and waited for. With several micro-batches all but the
/// last run as under no_sync(). In the last backward the gradients are averaged bucket by bucket
/// (bucketed_reduction.hpp), and then the optimizer runs. `--zero 1|2`: replicas share optimizer and
/// gradients (unit_step.hpp). `--zero whole`: they share the optimizer by parameter
/// (whole_parameters.hpp).
///
/// At world size 1 the copies remain, and PyTorch's call of an all-reduce over one rank is left out: it moves
/// no byte. Left out too: find_unused_parameters. Source: torch/nn/parallel/distributed.py.
Schedule build(const Model& model, const TrainingConfig& config, StrategyOptions& options) {
  Schedule schedule = make_schedule("ddp", config);
  LocalStep step(model, config);
  const int stage = zero_stage(options, model, config.world_size);
  const BucketLimits limits = bucket_limits(options);
  const bool reduces_each = reduces_each_micro_batch(options, config, stage);
  if (stage > 0) {
    Layout layout = zero_layout(stage, options);
    layout.reduces_each = reduces_each;
    layout.shards = config.world_size;
    UnitStep units(step, schedule, layout, zero_units(step, layout, limits));
    step.load_input();
    units.begin();
    units.train(broadcast_buffers(step));
    units.update(units.end_reduction());
    schedule.programs.push_back(step.take());
    return schedule;
  }
  BucketedReduction reduction(step, schedule, limits, 0, config.world_size);
  step.load_input();
  step.zero_grad();
  std::vector<int> ready = config.world_size > 1 ? broadcast_buffers(step) : std::vector<int>();
  if (config.micro_batches > 1) step.accumulate(std::exchange(ready, {}));
  const int last = step.last_micro_batch();
  step.forward_all(last, ready);
  for (std::size_t i = step.segments().size(); i-- > 0;)
    if (step.has(Phase::kBackward, step.segments()[i])) reduction.backward(step.segments()[i], last);
  reduction.copy_out();
  step.optimizer();
  schedule.programs.push_back(step.take());
  if (stage == kWholeStage)
    share_whole_parameters(schedule.programs.back(), schedule, model, config.offload, 0, config.world_size);
  return schedule;
}

const Registration<Strategy> kDdp(
    strategies(), "ddp", "PyTorch's DistributedDataParallel: buckets reduced while the backward goes on",
    {build}, 30);

}  // namespace
}  // namespace stepcast::ddp_strategy
