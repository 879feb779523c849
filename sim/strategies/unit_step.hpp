#pragma once

#include <cstddef>
#include <vector>

#include "sim/strategies/layout.hpp"
#include "sim/strategies/local_step.hpp"
#include "sim/strategies/unit_operations.hpp"

namespace stepcast {

/// Training step of ranks that share parameters, gradients or optimizer states of units, as a Layout states.
///
/// ZeRO 1 and 2 (Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models",
/// 2020, section 5), Megatron's distributed optimizer: n replicas keep all parameters. These form the buckets
/// of bucketed_reduction.hpp, each one flat array padded to a multiple of n. Rank i owns part i: the master
/// copy (in unmixed precision a second copy), the reduced gradients and the optimizer state, 1/n of each. In
/// the last micro-batch a bucket is divided by n and reduce-scattered after the backward of the segment that
/// completes it. After the backward every rank updates its parts; each is all-gathered while the next is
/// updated. The step ends with the last all-gather. With kNextStep the all-gathers begin the next step
/// instead, from the bucket of the first forward on, and each forward waits for those of its own parameters
/// (Megatron's --overlap-param-gather). A rank sends (n - 1)/n of the gradients and of the parameters per
/// step: as much as one all-reduce in equal precision.
///
/// With `--reduce-by all-reduce` a bucket is all-reduced, and rank i keeps part i of it, as DeepSpeed does
/// (deepspeed/runtime/zero/stage_1_and_2.py, allreduce_and_scatter; bf16_optimizer.py). With `--reduce-when
/// waited` stage 1 reduces after the backward, and stage 2 waits for each reduction.
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
///
/// FSDP: see fsdp.cpp.
class UnitStep {
 public:
  /// Adds the units to the Schedule. Their memory replaces what the step held so far, unless nothing is in
  /// shards.
  UnitStep(LocalStep& step, Schedule& schedule, const Layout& layout, std::vector<FsdpUnit> units);

  /// Begins the step: gathers what forwards wait for, and zeroes gradients that stay.
  void begin();
  /// Adds the forward of one segment behind the all-gathers that it waits for; returns its index.
  int forward(int segment, int micro_batch, std::vector<int> after, bool keeps_nothing = false);
  /// Adds the backward of one segment, or its weight half; returns its index. \param last of the step
  int backward(int segment, int micro_batch, bool last, std::vector<int> after = {},
               Phase phase = Phase::kBackward);
  /// Adds forward, loss and backward of all micro-batches, the first forward after `after`.
  void train(std::vector<int> after = {});
  /// Ends the reduction after the last backward. Returns the calls to wait for.
  [[nodiscard]] std::vector<int> end_reduction();
  /// Adds the optimizer after these calls, and all-gathers that follow it.
  void update(std::vector<int> after);
  /// Unit of a tensor in the Schedule.
  [[nodiscard]] int unit_of(int tensor) const;

 private:
  struct State {
    int gathered = -1;        ///< all-gather to wait for; -1: none
    bool whole = false;       ///< parameters are gathered
    bool in_flight = false;   ///< gathered, and its turn is not over
    bool gradients = false;   ///< whole gradients are there
    Bytes to_make{};          ///< whole gradients not yet allocated, if each tensor has its own array
    std::size_t members = 1;  ///< adjacent units with the same segments, this one included
    std::size_t users = 0;    ///< segments with a backward that use it
    std::size_t pending = 0;  ///< those whose backward of this micro-batch has not run
  };

  [[nodiscard]] const FsdpUnit& unit(std::size_t index) const { return units_.unit(index); }
  [[nodiscard]] std::vector<std::size_t> members(std::size_t index) const;
  void find_users();
  void gather(std::size_t index, std::vector<int> after = {});
  void gather_for_use(std::size_t index, bool ahead = false);
  [[nodiscard]] bool is_missing(std::size_t index) const;
  void free_parameters(std::size_t index);
  void prefetch(int from, int direction);
  std::vector<int> wait_for(int segment, std::vector<int> after);
  void take_gradients(std::size_t index, const std::vector<int>& after);
  void make_gradients(std::size_t index, int segment, int backward, bool last);
  void reduce(std::size_t index, int micro_batch, bool last);
  int average(std::size_t index, bool incoming, int after);
  void finish_reduction();
  [[nodiscard]] double first_division(const FsdpUnit& unit) const;

  LocalStep& step_;
  Layout layout_;
  UnitOperations units_;
  std::size_t first_;                           // of its units in the Schedule
  bool sends_;                                  // reduced gradients to the host
  std::vector<State> states_;                   // by unit of the Schedule
  std::vector<std::vector<std::size_t>> used_;  // by segment: its units
  std::vector<Reduction> reducing_;
  std::vector<std::size_t> deferred_;  // units whose reduction waits for the end of the backward
  int reduced_ = -1;                   // latest reduction; -1: none
  bool finishes_ = true;               // the next reduction waits for those in flight
  std::vector<int> averaged_;          // all-reduces over replicas that the optimizer waits for
};

}  // namespace stepcast
