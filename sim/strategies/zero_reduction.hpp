#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "sim/strategies/bucketed_reduction.hpp"
#include "sim/strategies/local_step.hpp"
#include "sim/strategies/options.hpp"
#include "sim/strategies/unit_operations.hpp"

namespace stepcast {

/// \param given option that shares the optimizer, as written \param instead advice
/// \throws UsageError for a model without an optimizer, and replicas that experts do not divide
void require_sharing(const Model& model, const std::string& given, int replicas, const std::string& instead);

/// ZeRO stage, or kWholeStage; 0: every replica keeps everything, and the option is dropped from results.
/// \throws UsageError for a single replica, without an optimizer, or with --compress fp16
int zero_stage(StrategyOptions& options, const Model& model, int replicas);

/// Ranks that share one copy of what is sharded, and those that have the same shard. Groups as in a
/// Collective.
struct Sharing {
  int group = 0;
  int shards = 1;
  int replica_group = -1;
  int replicas = 1;
  bool gathers_in_forward = false;  ///< --gather-parameters forward, of stages 1 and 2
  bool reduces_each = false;        ///< --accumulate every, of stage 2
};

/// Gradients and optimizer state sharded over n replicas that keep all parameters: ZeRO 1 and 2 (Rajbhandari
/// et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", 2020, section 5),
/// Megatron's distributed optimizer. For stages of a pipeline parameters can be sharded too: stage 3, FSDP.
///
/// Parameters form the buckets of bucketed_reduction.hpp, each one flat array padded to a multiple of n. Rank
/// i owns part i: the master copy (in unmixed precision a second copy), the reduced gradients and the
/// optimizer state, 1/n of each. In the last micro-batch a bucket is divided by n and reduce-scattered after
/// the backward of the segment that completes it. After the backward every rank updates its parts; each is
/// all-gathered while the next is updated. The step ends with the last all-gather. With `gathers_in_forward`
/// the all-gathers begin the next step instead, from the bucket of the first forward on, and each forward
/// waits for those of its own parameters (Megatron's --overlap-param-gather). A rank sends (n - 1)/n of the
/// gradients and of the parameters per step: as much as one all-reduce in equal precision.
///
/// Experts have buckets of their own, sharded over the replicas that have the same ones; experts of a single
/// replica stay there, and their gradients are divided alone (Megatron's expert data parallelism).
///
/// Stage 1 keeps whole gradients all the time. Stage 2 holds those of a bucket from the first backward that
/// writes them until their reduction has ended, which the next reduction waits for. With several
/// micro-batches that is from the first to the last of them (no_sync), so that stage 2 saves little over
/// stage 1. With `reduces_each` every micro-batch reduces and frees them, and adds what arrives to the rank's
/// part, as DeepSpeed does.
///
/// Replicas of shards all-reduce the shard of the gradients after its reduce-scatter.
///
/// Stage 3 is FSDP as in torchtitan's pipelines (reshard_after_forward off between the micro-batches of a
/// step). Units replace buckets: each block, and each run of adjacent segments that are no blocks
/// ([embedding], [norm, head]). Between steps a rank holds 1/n of everything. A step begins with the
/// all-gathers of all units of the stage in the order of their forwards; each forward waits for its own (the
/// UNSHARD of torch/distributed/pipelining/schedules.py, there for up to three stages of a rank at once).
/// Parameters stay until the unit's last backward of the step. Then they are freed and the gradients
/// reduce-scattered as in stage 2, while the backward goes on (torch: after the last backward of the stage).
/// Nothing is gathered after the optimizer, so that a step sends as many bytes as with stages 1 and 2.
class ZeroReduction {
 public:
  /// Replaces the memory that the step held so far. \param tied tensors that another stage copies: each has
  /// its own bucket, so that both stages have equal parts \param limits of stages 1 and 2
  ZeroReduction(LocalStep& step, Schedule& schedule, const BucketLimits& limits, int stage,
                const Sharing& sharing, const std::vector<int>& tied = {});

  void zero_grad();
  /// Gathers all parameters that are gathered before forwards (stage 3, or gathers_in_forward).
  void gather();
  /// Adds the forward of one segment behind its all-gathers, unless an earlier forward waited for them;
  /// returns its index.
  int forward(int segment, int micro_batch, std::vector<int> after, bool keeps_nothing = false);
  /// Adds the backward of one segment, or its weight half; returns its index. \param last of the step
  int backward(int segment, int micro_batch, bool last, std::vector<int> after = {},
               Phase phase = Phase::kBackward);
  /// Waits for reductions in flight, frees the whole gradients and adds up what arrived.
  void finish_reduction();
  /// Ends the reduction after the last backward. Returns the calls to wait for.
  [[nodiscard]] std::vector<int> end_reduction();
  /// Unit of a tied tensor in the Schedule.
  [[nodiscard]] int unit_of(int tensor) const { return static_cast<int>(first_ + bucket_of_[tensor]); }
  /// Adds the optimizer after these calls, and the all-gathers.
  void update(std::vector<int> after);

 private:
  struct State {
    std::size_t pending = 0;  ///< number of tensors with gradients that are not ready
    bool gradients = false;   ///< whole gradients are allocated
    int gathered = -1;        ///< all-gather to wait for; -1: none
  };

  struct Reduction {
    std::size_t bucket;
    int call;
    bool adds;  ///< to the shard of earlier micro-batches
  };

  [[nodiscard]] const FsdpUnit& unit(std::size_t bucket) const { return units_.unit(first_ + bucket); }
  [[nodiscard]] bool gathers_before() const { return stage_ == 3 || sharing_.gathers_in_forward; }
  [[nodiscard]] std::vector<int> frozen_of(int segment) const;
  /// Buckets of the parameters that a segment uses.
  [[nodiscard]] std::vector<std::size_t> buckets_of(int segment) const;
  int gather(std::size_t bucket, std::vector<int> after);
  void take_gradients(std::size_t bucket);
  void reduce(std::size_t bucket, bool adds, bool last);

  LocalStep& step_;
  UnitOperations units_;
  int stage_;
  Sharing sharing_;
  std::size_t first_;                   // of its units in the Schedule
  std::vector<std::size_t> bucket_of_;  // by parameter
  std::vector<State> states_;           // by bucket
  std::vector<Reduction> reducing_;
  std::vector<int> averaged_;  // all-reduces over replicas, of units with one shard
};

}  // namespace stepcast
