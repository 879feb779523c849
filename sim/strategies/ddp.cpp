#include <array>
#include <string>
#include <utility>
#include <vector>

#include "sim/strategies/bucketed_reduction.hpp"
#include "sim/strategies/local_step.hpp"
#include "sim/strategies/strategy.hpp"

namespace stepcast {
namespace {

/// Rank 0's buffers, one call per dtype, both in flight at once.
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

/// PyTorch's DistributedDataParallel from the second step on (the first uses one bucket for everything).
///
/// Before the forward, rank 0's buffers are broadcast and waited for. With several micro-batches all but the
/// last run as under no_sync(). In the last backward the gradients are averaged bucket by bucket
/// (bucketed_reduction.hpp), and then the optimizer runs.
///
/// At world size 1 the copies remain, and PyTorch's call of an all-reduce over one rank is left out: it moves
/// no byte. Left out too: find_unused_parameters. Source: torch/nn/parallel/distributed.py.
Schedule build(const Model& model, const TrainingConfig& config, StrategyOptions& options) {
  Schedule schedule = make_schedule("ddp", config);
  LocalStep step(model, config);
  BucketedReduction reduction(step, schedule, bucket_limits(options), 0, config.world_size);
  step.prepare();
  std::vector<int> ready;
  if (config.world_size > 1) ready = broadcast_buffers(step);
  if (config.micro_batches > 1) step.accumulate(std::exchange(ready, {}));
  const int last = step.last_micro_batch();
  step.forward_all(last, ready);
  for (std::size_t i = step.segments().size(); i-- > 0;) reduction.backward(step.segments()[i], last);
  reduction.copy_out();
  step.optimizer();
  schedule.programs.push_back(step.take());
  return schedule;
}

const Registration<Strategy> kDdp{
    strategies(),
    {.name = "ddp",
     .description = "PyTorch's DistributedDataParallel: buckets reduced while the backward goes on",
     .thing = {build, bucket_options()},
     .order = 30}};

}  // namespace
}  // namespace stepcast
