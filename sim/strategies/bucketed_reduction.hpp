#pragma once

#include <cstddef>
#include <vector>

#include "sim/strategies/local_step.hpp"

namespace stepcast {

/// Sizes at which buckets close, their dtype, and when they are reduced.
struct BucketLimits {
  Bytes first_cap;
  Bytes cap;
  bool half = false;   ///< float16
  bool waits = false;  ///< after the backward
};

/// Limits of the bucket layout as PyTorch understands `bucket_cap_mb`. Without it the first bucket closes at
/// 1 MiB and all others at 25 MiB, so that communication starts early. With it, 2.x applies it to the first
/// bucket too; 1.x keeps 1 MiB there. Settles `first-bucket-cap`, which then contains the choice of
/// `framework`. Source: torch/nn/parallel/distributed.py 1.13 and 2.x (bucket_bytes_cap_default).
BucketLimits bucket_limits(StrategyOptions& options);

/// Greedy bucket assignment of PyTorch's DDP, in gradient-ready order: a tensor is appended, and then the
/// bucket closes if it has reached its limit. So a bucket overshoots by up to its last tensor; no tensor is
/// split or deferred. The first bucket closes at `first_cap`, all others at `cap`.
///
/// Covers the parameters of `segments`, which a rank holds, and its `copies` of others, which are ready with
/// the segment that uses them. Gradients of expert-parallel parameters have separate buckets, as in Megatron
/// (megatron/core/distributed/distributed_data_parallel.py); so has each tensor of `separate`. Source:
/// torch/csrc/distributed/c10d/reducer.cpp, compute_bucket_assignment_by_size, with order and limits of
/// rebuild_buckets(), which is the layout from the second step on. Holds: every tensor is in exactly one
/// bucket; only the last bucket may be smaller than its limit.
///
/// In Megatron each chunk of a pipeline, a run of adjacent segments, has buckets of its own, and all chunks
/// but the first of the model have one, whatever its size, and one of experts. Source:
/// distributed_data_parallel.py, disable_bucketing.
std::vector<Bucket> assign_buckets(const Model& model, const std::vector<int>& segments, Bytes first_cap,
                                   Bytes cap, const std::vector<int>& copies = {},
                                   const std::vector<int>& separate = {});

/// Gradients averaged over a data-parallel group during the backward, as in PyTorch's DDP. Used by `ddp` and
/// by pipelines whose stages have replicas.
///
/// In the last micro-batch's backward each gradient is copied into its bucket when it is ready, divided by
/// the number of ranks on the way. The all-reduce of a full bucket starts on the communication stream, with
/// `reduce-when: waited` after the backward.
/// Gradients become ready in the order of the buckets, so buckets are launched in order. After the backward
/// each bucket is waited for and copied back, in order.
///
/// `compress: fp16` sends buckets in half precision: half the bytes, and sums rounded to half. PyTorch's hook
/// casts a full bucket and divides it there; here copy, division and cast are one operation. Sources:
/// torch/csrc/distributed/c10d/reducer.cpp; torch/distributed/algorithms/ddp_comm_hooks.
class BucketedReduction {
 public:
  /// Adds the buckets of the step's segments to the Schedule. \param group of `ranks` replicas. Gradients of
  /// experts are reduced over those with the same experts and divided by all
  BucketedReduction(LocalStep& step, Schedule& schedule, const BucketLimits& limits, int group, int ranks);

  /// Adds the backward of one segment in the last micro-batch, or its weight half, with hooks; returns its
  /// index.
  int backward(int segment, int micro_batch, std::vector<int> after = {}, Phase phase = Phase::kBackward);
  void copy_out();

 private:
  /// \param hook true: runs inside the backward; false: after it
  void copy_in(int tensor, int backward, bool hook);
  /// Launches the all-reduce of a full bucket, if replicas share it.
  void reduce(std::size_t number);

  LocalStep& step_;
  Schedule& schedule_;
  int group_;
  int ranks_;
  bool waits_;
  bool in_place_;                       ///< Megatron's gradients are the buckets, which are scaled
  std::size_t first_;                   // of its buckets in the Schedule
  std::vector<std::size_t> bucket_of_;  // by parameter
  /// By bucket: its copies so far; if it is full, the operations that its copy back waits for.
  std::vector<std::vector<int>> pending_;
};

}  // namespace stepcast
