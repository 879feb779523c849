#pragma once

#include <cstddef>
#include <vector>

#include "sim/strategies/local_step.hpp"

namespace stepcast {

/// When buckets close, and how they travel.
struct BucketLimits {
  Bytes first_cap;
  Bytes cap;
  bool half = false;  ///< as float16
};

/// `bucket-cap`, `first-bucket-cap`, `framework`, `compress`.
std::vector<StrategyOption> bucket_options();

/// The layout's limits as PyTorch understands `bucket_cap_mb`. Without it the first bucket closes at 1 MiB and
/// all others at 25 MiB, so that communication starts early. With it, 2.x applies it to the first bucket too;
/// 1.x leaves that at 1 MiB. Settles `first-bucket-cap`, which then says all that `framework` does.
/// Source: torch/nn/parallel/distributed.py 1.13 and 2.x (bucket_bytes_cap_default).
BucketLimits bucket_limits(StrategyOptions& options);

/// Greedy bucket assignment of PyTorch's DDP, in gradient-ready order: a tensor is appended, and then the
/// bucket closes if it has reached its limit. So a bucket overshoots by up to its last tensor; none is split
/// or put off. The first bucket closes at `first_cap`, all others at `cap`.
///
/// Source: torch/csrc/distributed/c10d/reducer.cpp, compute_bucket_assignment_by_size, with the order and the
/// limits of rebuild_buckets(), thus the layout from the second step on. Holds: every tensor is in exactly
/// one bucket; only the last bucket may be smaller than its limit. Only of the parameters of `segments`, which a
/// rank holds, and of its `copies` of others', which are ready with the segment that uses them. Where ranks share
/// experts, their gradients have buckets of their own, as in Megatron
/// (megatron/core/distributed/distributed_data_parallel.py); so has each of `apart`.
std::vector<Bucket> assign_buckets(const Model& model, const std::vector<int>& segments, Bytes first_cap,
                                   Bytes cap, const std::vector<int>& copies = {},
                                   const std::vector<int>& apart = {});

/// Gradients averaged over a data-parallel group while the backward goes on, as PyTorch's DDP does it; shared
/// by `ddp` and by pipelines whose stages have replicas.
///
/// In the last micro-batch's backward, each gradient is copied into its bucket as soon as it is ready,
/// divided by the number of ranks on the way; a full bucket's all-reduce starts on the communication stream.
/// Gradients become ready in the order of the buckets, so buckets are launched in order. After the backward
/// each bucket is waited for and copied back, in order.
///
/// `compress: fp16` makes the buckets half precision: half the bytes travel, and the sums are rounded to
/// half. PyTorch's hook casts a full bucket and divides it there; here copying, dividing and casting are one
/// pass. Sources: torch/csrc/distributed/c10d/reducer.cpp; torch/distributed/algorithms/ddp_comm_hooks.
class BucketedReduction {
 public:
  /// Adds the buckets of the step's segments to the Schedule. \param group of the replicas, `ranks` of them; experts'
  /// gradients take as many of those as have the same experts, and are divided by all
  BucketedReduction(LocalStep& step, Schedule& schedule, const BucketLimits& limits, int group, int ranks);

  /// The backward of one segment in the last micro-batch, or its half of the weights, with its hooks; returns its index.
  int backward(int segment, int micro_batch, std::vector<int> after = {}, Phase phase = Phase::kBackward);
  void copy_out();

 private:
  /// \param hook it runs in the middle of the backward; else behind it
  void copy_in(int tensor, int backward, bool hook);

  LocalStep& step_;
  Schedule& schedule_;
  int group_;
  int ranks_;
  std::size_t first_;                   // of its buckets in the Schedule
  std::vector<std::size_t> bucket_of_;  // by parameter
  /// By own bucket: its copies so far; when it is full, what its copy back waits for.
  std::vector<std::vector<int>> pending_;
};

}  // namespace stepcast
