#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "sim/strategies/bucketed_reduction.hpp"
#include "sim/strategies/local_step.hpp"
#include "sim/strategies/options.hpp"

namespace stepcast {

/// `--zero`, the same for every strategy whose replicas can share their optimizer.
StrategyOption zero_option();

/// \param given what shares it, as it was written \param instead what to take
/// \throws UsageError for a model without an optimizer, or for experts that ranks share
void require_sharing(const Model& model, const std::string& given, const std::string& instead);

/// The stage, 0 where every replica keeps everything; 0 is dropped from what results say.
/// \throws UsageError for a single replica, without an optimizer, with --compress fp16, or for experts that ranks share
int zero_stage(StrategyOptions& options, const Model& model, int replicas);

/// Gradients and optimizer shared among n replicas that keep all parameters: ZeRO 1 and 2 (Rajbhandari et al.,
/// "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", 2020, section 5), Megatron's
/// distributed optimizer; and, of a pipeline's stages, parameters too: FSDP.
///
/// Parameters stand in the buckets of bucketed_reduction.hpp, each one flat array padded to a multiple of n;
/// rank i owns its i-th part: the master copy (of unmixed precision a second copy), the reduced gradients and the
/// optimizer's state, 1/n of each. In the last micro-batch a bucket is divided by n and reduce-scattered when the
/// backward of the segment that fills it has ended. After the backward every rank updates its parts, and each is
/// all-gathered while the next is updated; the step ends with the last (Megatron without --overlap-param-gather).
/// Per step a rank sends (n - 1)/n of the gradients and of the parameters: as much as one all-reduce where both
/// have the same precision.
///
/// Stage 1 keeps whole gradients all the time. Stage 2 has those of a bucket from the first backward that writes to
/// them until their reduction has ended, which is waited for before the next one starts; with several
/// micro-batches that is from the first to the last of them (no_sync), where stage 2 saves little over stage 1. Left
/// out: DeepSpeed's reduction in every micro-batch.
///
/// Stage 3 is FSDP as in torchtitan's pipelines (reshard_after_forward off between the micro-batches of a step): in place of
/// buckets each block is a unit, and so are neighbours that are no blocks ([embedding], [norm, head]). Between steps a rank
/// has 1/n of everything. A step begins with the all-gathers of all units of the stage, in the order of their forwards, each
/// of which waits for its own (the UNSHARD of torch/distributed/pipelining/schedules.py, there for up to three stages of a
/// rank at once). Parameters stay until the unit's last backward of the step; then they are freed and the gradients
/// reduce-scattered as in stage 2, while the backward goes on (torch: behind the last backward of the stage). Behind the
/// optimizer nothing is gathered, so that a step sends as many bytes as with stages 1 and 2.
class ZeroReduction {
 public:
  /// In place of what the step held so far. \param group of the replicas, `ranks` > 1 of them \param tied tensors that
  /// another stage has a copy of: each is a bucket of its own, so that both stages have the same parts of it
  /// \param limits of stages 1 and 2
  ZeroReduction(LocalStep& step, Schedule& schedule, const BucketLimits& limits, int stage, int group,
                int ranks, const std::vector<int>& tied = {});

  void zero_grad();
  /// Of stage 3, parameters of all units.
  void gather();
  /// What the forward of a segment waits for: all-gathers that none before it has waited for.
  [[nodiscard]] std::vector<int> needed(int segment);
  /// The backward of one segment, or its half of the weights; returns its index. \param reduces it is the last one of the
  /// step
  int backward(int segment, int micro_batch, bool reduces, std::vector<int> after = {},
               Phase phase = Phase::kBackward);
  /// After the last backward, what is left of the reduction: the calls that are to be waited for.
  [[nodiscard]] std::vector<int> end_reduction();
  /// The unit of the Schedule that a tied tensor is.
  [[nodiscard]] int unit_of(int tensor) const { return static_cast<int>(first_ + bucket_of_[tensor]); }
  /// The optimizer after these calls, and the all-gathers.
  void update(std::vector<int> after);

 private:
  /// Of a bucket.
  struct State {
    std::size_t pending = 0;  ///< tensors whose gradients are not ready
    bool gradients = false;   ///< whole ones are there
    int gathered = -1;        ///< the all-gather that is still to be waited for
  };

  [[nodiscard]] const FsdpUnit& unit(std::size_t bucket) const;
  /// Of the parameters that a segment uses.
  [[nodiscard]] std::vector<std::size_t> buckets_of(int segment) const;
  int gather(std::size_t bucket, std::vector<int> after);
  void take_gradients(std::size_t bucket);
  void reduce(std::size_t bucket);
  void finish_reduction();

  LocalStep& step_;
  Schedule& schedule_;
  int stage_;
  int ranks_;
  std::size_t first_;                                  // of its units in the Schedule
  std::vector<std::size_t> bucket_of_;                 // by parameter
  std::vector<State> states_;                          // by bucket
  std::vector<std::pair<std::size_t, int>> reducing_;  // bucket and its call
};

}  // namespace stepcast
