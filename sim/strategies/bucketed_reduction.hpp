#pragma once

#include <cstddef>
#include <vector>

#include "sim/strategies/local_step.hpp"

namespace stepcast {

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
  /// Adds the buckets of the step's segments to the Schedule. \param group of the replicas, `ranks` of them
  BucketedReduction(LocalStep& step, Schedule& schedule, const TrainingConfig& config, int group, int ranks);

  /// The backward of one segment in the last micro-batch, with its hooks; returns its index.
  int backward(int segment, int micro_batch, std::vector<int> after = {});
  void copy_out();

 private:
  void copy_in(int tensor, int backward);

  LocalStep& step_;
  Schedule& schedule_;
  int group_;
  int ranks_;
  std::size_t first_;                        // of its buckets in the Schedule
  std::vector<std::size_t> bucket_of_;       // by parameter
  std::vector<std::vector<int>> copied_in_;  // by own bucket: its copies so far
  std::vector<std::vector<int>> reduced_;    // by own bucket: what its copy back waits for
};

}  // namespace stepcast
