#include <array>
#include <string>
#include <utility>
#include <vector>

#include "sim/strategies/buckets.hpp"
#include "sim/strategies/local_step.hpp"
#include "sim/strategies/strategy.hpp"

namespace stepcast {
namespace {

/// PyTorch's DistributedDataParallel from the second step on (the first uses one bucket for everything).
///
/// Before the forward, rank 0's buffers are broadcast, one call per dtype, both in flight at once, and waited
/// for. In the backward, each gradient is copied into its bucket as soon as it is ready, divided by
/// world_size on the way; a full bucket's all-reduce starts on the communication stream while the backward
/// goes on. Gradients become ready in the order of the buckets, so buckets are launched in order. After the
/// backward each bucket is waited for and copied back, in order, and then the optimizer runs.
///
/// At world size 1 the copies remain, and PyTorch's call of an all-reduce over one rank is left out: it moves
/// no byte. Left out too: find_unused_parameters, no_sync and communication hooks. Source:
/// torch/csrc/distributed/c10d/reducer.cpp; torch/nn/parallel/distributed.py.
class Ddp {
 public:
  Ddp(const Model& model, const TrainingConfig& config)
      : config_(config),
        step_(model, config),
        schedule_(make_schedule("ddp", config)),
        bucket_of_(model.parameters.size()) {
    schedule_.buckets = assign_buckets(model, config.first_bucket_cap, config.bucket_cap);
    for (std::size_t b = 0; b < schedule_.buckets.size(); ++b)
      for (const int tensor : schedule_.buckets[b].tensors) bucket_of_[static_cast<std::size_t>(tensor)] = b;
    copied_in_.resize(schedule_.buckets.size());
    reduced_.resize(schedule_.buckets.size());
  }

  Schedule build() {
    step_.prepare();
    step_.forward(broadcast_buffers());
    for (std::size_t i = step_.model().segments.size(); i-- > 0;) {
      const int backward = step_.backward(i);
      for (const int tensor : step_.model().segments[i].parameters) copy_in(tensor, backward);
    }
    for (std::size_t b = 0; b < schedule_.buckets.size(); ++b) copy_out(b);
    step_.optimizer();
    schedule_.programs.push_back(step_.take());
    return std::move(schedule_);
  }

 private:
  std::vector<int> broadcast_buffers() {
    std::vector<int> calls;
    if (config_.world_size == 1 || !config_.broadcast_buffers) return calls;
    constexpr std::array<const char*, 2> kTypes{"float32", "int64"};
    const std::vector<int> before = step_.latest();
    for (int group = 0; group < 2; ++group) {
      const Bytes size = step_.model().buffer_bytes(group);
      if (size <= Bytes(0)) continue;
      calls.push_back(step_.add_collective(
          std::string("broadcast/buffers.") + kTypes[static_cast<std::size_t>(group)],
          {.kind = CollectiveKind::kBroadcast, .message = size, .payload = {Payload::What::kBuffers, group}},
          before));
    }
    return calls;
  }

  /// The hook of one gradient; launches the bucket that it fills.
  void copy_in(int tensor, int backward) {
    const Parameter& parameter = step_.model().parameters[static_cast<std::size_t>(tensor)];
    const std::size_t b = bucket_of_[static_cast<std::size_t>(tensor)];
    Op op;
    op.name = "copy_in/" + parameter.name;
    op.action = CopyIn{.bucket = static_cast<int>(b), .tensor = tensor, .scale = 1.0 / config_.world_size};
    op.within = backward;
    op.ready_tensor = tensor;
    op.memory_traffic = 2.0 * parameter.size;
    copied_in_[b].push_back(step_.add(std::move(op)));
    const Bucket& bucket = schedule_.buckets[b];
    if (copied_in_[b].size() < bucket.tensors.size()) return;
    reduced_[b] = copied_in_[b];
    if (config_.world_size == 1) return;
    reduced_[b] = {step_.add_collective("all_reduce/bucket" + std::to_string(b),
                                        {.kind = CollectiveKind::kAllReduce,
                                         .message = bucket.size,
                                         .payload = {Payload::What::kBucket, static_cast<int>(b)}},
                                        copied_in_[b])};
  }

  void copy_out(std::size_t b) {
    Op op;
    op.name = "copy_out/bucket" + std::to_string(b);
    op.action = CopyOut{.bucket = static_cast<int>(b)};
    op.after = reduced_[b];
    op.memory_traffic = 2.0 * schedule_.buckets[b].size;
    step_.add(std::move(op));
  }

  const TrainingConfig& config_;
  LocalStep step_;
  Schedule schedule_;
  std::vector<std::size_t> bucket_of_;       // by parameter
  std::vector<std::vector<int>> copied_in_;  // by bucket: its copies so far
  std::vector<std::vector<int>> reduced_;    // by bucket: what its copy back waits for
};

Schedule build(const Model& model, const TrainingConfig& config) { return Ddp(model, config).build(); }

const Registration<Strategy> kDdp{
    strategies(),
    {.name = "ddp",
     .description = "PyTorch's DistributedDataParallel: buckets reduced while the backward goes on",
     .thing = {build},
     .order = 30}};

}  // namespace
}  // namespace stepcast
