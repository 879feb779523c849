#pragma once

#include <array>
#include <functional>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "sim/plan/link_times.hpp"
#include "sim/plan/memory_bounds.hpp"

/// Lower bounds of a plan's step time and peak memory, in microseconds instead of a replay.
namespace stepcast {

struct PlanBound {
  double step_s = 0.0;
  double memory_bytes = 0.0;  ///< of the process (CPUs: allocated), of the rank that holds most
};

/// Lower bounds of the forecasts of `predict` (tested in tests/plan/bounds_test.cpp). Both relax the replay:
/// they leave parts of a step out and count no part slower than the replay does.
///
///     time     compute of the busiest rank, with recomputation, at the estimate's times, plus the
///              collectives inside it, each alone on its links (LinkTimes). For rank r of a pipeline
///              sum_{q < r} (F_q + B_q + 2 messages) + m (F_r + B_r), with F_q and B_q of the first chunk of
///              q; the bound is the largest over r. Added is what nothing can hide: the first all-gather,
///              the last gradient's reduction, and the optimizer (a share of it if replicas share it, or
///              their all-gathers). If all gradients or gathers together take longer on their links, or a
///              launch thread longer to issue the rank's kernels, that time counts instead.
///     memory   parameters, gradients, optimizer states and buckets; plus the peak of the rank's own
///              operations, one after the other (`LocalStep`), times the micro-batches that the order of its
///              stage keeps; for FSDP plus the units that compute needs. Prefetched units and messages in
///              flight are left out.
///
/// Left out of the time: sharing of links and devices, waits of ranks for each other, hidden communication.
class PlanBounds {
 public:
  /// \param links false: communication costs nothing, and ranks may outnumber the places of the cluster
  explicit PlanBounds(PlanModels& models, bool links = true);
  /// \pre the plan is one of enumerate_plans()
  double step_s(const Plan& plan);
  /// For a pipeline a tighter bound that follows the order of its schedule, with all waits of ranks for each
  /// other. Takes 100 times as long as step_s(). For other strategies equal to step_s(). \param unordered
  /// step_s()
  double ordered_step_s(const Plan& plan, double unordered);
  /// Lower bound of the memory of the process.
  double memory_bytes(const Plan& plan);
  /// Of parameters and optimizer states alone, which no plan of smaller_plans() makes less.
  double least_memory_bytes(const Plan& plan);
  PlanBound of(const Plan& plan) { return {step_s(plan), memory_bytes(plan)}; }
  /// Memory limit per rank: device memory less the reserve; infinity if it is unknown.
  [[nodiscard]] double memory_limit() const;

 private:
  /// Least memory of the process of a rank that allocates these bytes. Of NCCL's communicators those of
  /// stages, tensor parallelism and replicas count, which every rank has.
  [[nodiscard]] double needed_bytes(const PlanView& view, double allocated) const;
  /// Times of one micro-batch with the collectives inside segments.
  struct SegmentTimes {
    SegmentSums forward_s, backward_s;
    SegmentSums recompute_s;
    SegmentSums weights_s;  ///< of the backward, the part that can be deferred
    SegmentSums optimizer_s, expert_optimizer_s;
    double loss_s = 0.0;
  };
  using CollectiveTime = std::function<double(const LayerCollective&)>;

  double pipelined_s(const PlanView& view);
  double ordered_s(const PlanView& view);
  double sharded_s(const PlanView& view);

  const SegmentTimes& times(const PlanView& view, int first_rank);
  /// Launch overheads instead of device times. \pre the device has a launch thread
  const SegmentTimes& issue_times(const PlanView& view);
  /// \param part of the phase costs: device time or launch overhead
  SegmentTimes sums_of(const PlanView& view, double PhaseCost::*part, double speed,
                       const CollectiveTime& time);
  double layer_collective_s(const PlanView& view, const LayerCollective& collective, int first_rank);
  /// First rank of the first groups whose collectives are as fast as those of the groups from `first_rank`
  /// on.
  int first_alike(const PlanView& view, int first_rank);
  /// With the loss after the last segment.
  static double forward_s(const PlanView& view, const SegmentTimes& times, SegmentRange range);
  /// With the forwards that recomputation repeats.
  static double backward_s(const PlanView& view, const SegmentTimes& times, SegmentRange range);
  /// \param shards ranks that share the optimizer; experts are shared by others
  double optimizer_s(const PlanView& view, const SegmentTimes& times, SegmentRange range, int shards);
  /// Time in which the launch thread issues a rank's step; 0 without one. \param shards ranks that share the
  /// optimizer
  double issue_s(const PlanView& view, SegmentRange range, int shards = 1);
  double boundary_s(const PlanView& view, std::size_t chunk);
  /// From the end of the last backward of a rank's first chunk to the end of its step. \param updates_s
  /// its optimizer
  double after_backward_s(const PlanView& view, std::size_t rank, double backward_s, double updates_s);

  PlanModels& models_;
  const Cluster cluster_;
  LinkTimes links_;
  MemoryBounds memory_;
  double fastest_host_ = 1.0;
  /// Ranks of tensor, context and expert parallelism, those that divide an expert, and the batch stride.
  using GroupShape = std::array<int, 5>;
  /// First ranks of groups that are alike: by shape and first rank; and by shape and times of probes.
  std::map<std::pair<GroupShape, int>, int> alike_;
  std::map<std::pair<GroupShape, std::vector<double>>, int> kinds_;
  static constexpr int kIssued = -1;  ///< instead of a first rank: launch overheads
  std::map<std::tuple<const PhaseCosts*, int>, SegmentTimes> times_;  ///< by first rank
};

}  // namespace stepcast
