#pragma once

#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <vector>

#include "sim/collectives/nccl_graph.hpp"
#include "sim/plan/problem.hpp"
#include "sim/schedule/schedule.hpp"
#include "topologies/cluster.hpp"

/// What a plan takes and holds at least, in microseconds instead of a replay.
namespace stepcast {

struct PlanBound {
  double step_s = 0.0;
  double memory_bytes = 0.0;  ///< of the rank that holds most
};

/// Lower bounds of what `predict` says of a plan (a law holds them to that: tests/plan/bounds_test.cpp). Both are relaxations
/// of the replay that leave parts of it out and take nothing faster than it does:
///
///     time     what the rank with most to do computes, recomputation included, at the estimate's times (sim/replay/
///              device_scaling.hpp); what ranks that share its layers put together in the middle of that, each exchange alone
///              on its links (NCCL's formulas, beneath which no replay goes: nccl_run.cpp); of a pipeline the longest path
///              through the order of its stages (`pipeline_order`), messages alone on their links; then what nothing can hide
///              behind: the first all-gather, the last gradient's reduction, the optimizer. Where all gradients or gathers
///              together take longer on their links, these.
///     memory   parameters, gradients, optimizer states and buckets; and the most that the rank's own operations hold,
///              one after the other (`LocalStep`), times the micro-batches that the order of its stage keeps; of FSDP the
///              units that compute needs there. What is prefetched or under way is left out.
///
/// Left out of the time: that links and devices are shared, that ranks wait for each other, hidden communication.
class PlanBounds {
 public:
  /// \param links else communication costs nothing, and there may be more ranks than the cluster has places
  explicit PlanBounds(PlanModels& models, bool links = true);
  /// \pre the plan is one of enumerate_plans()
  PlanBound of(const Plan& plan);
  /// Of the rank that holds most, as far as its device's memory counts.
  [[nodiscard]] double memory_limit() const;

 private:
  /// Ranks first, first + stride, ...
  struct Ranks {
    int first = 0, count = 1, stride = 1;
    auto operator<=>(const Ranks&) const = default;
  };
  /// Of one micro-batch, by segment, exchanges included.
  struct SegmentTimes {
    std::vector<double> forward_s, backward_s;
    double loss_s = 0.0;
  };
  /// What consecutive segments on one rank hold of one micro-batch, beside what they hold all the time.
  struct Activations {
    double forward_peak = 0.0;   ///< above what was there before the forward
    double kept = 0.0;           ///< between forward and backward
    double backward_peak = 0.0;  ///< above what was there before the backward
  };
  struct Part {
    const Model* model;
    int samples;  ///< of a micro-batch
    int recompute;
  };
  /// First and last segment.
  using Range = std::pair<int, int>;

  PlanBound replicated(const Plan& plan);
  PlanBound sharded(const Plan& plan);
  PlanBound pipelined(const Plan& plan);

  /// FSDP's ranks: those with one copy in shards, of these those with the same experts, and those with the same shard.
  struct ShardRanks {
    Ranks shards, experts, replicas;
  };
  static ShardRanks shard_ranks(const Plan& plan);
  struct UnitBytes {
    bool keeps;                  ///< gathered units, from forward to backward
    double parameter, gradient;  ///< of an element
  };
  /// Activations, gathered units of parameters and whole gradients of FSDP, at their most. \param elements gathered by unit
  double sharded_peak(const Plan& plan, const std::vector<int>& unit_of, const std::vector<double>& elements,
                      UnitBytes bytes);

  /// By segment, what its forward computes after its last exchange: an all-gather that follows may hide behind that.
  std::vector<double> after_exchanges_s(const Plan& plan);

  Part part_of(const Plan& plan);
  const SegmentTimes& times(const Plan& plan, int first_rank);
  const Activations& activations(const Plan& plan, Range range);
  double optimizer_s(const Plan& plan, Range range);
  double forward_s(const Plan& plan, const SegmentTimes& times, Range range);
  double backward_s(const Plan& plan, const SegmentTimes& times, Range range);
  /// Parameters, gradients, states and buckets of segments on one rank; `averaged` over replicas.
  double resident_bytes(const Plan& plan, Range range, bool averaged);
  /// From the end of the last backward to that of the last reduction. \param backward_s the last one
  double reduction_tail_s(const Plan& plan, Range range, Ranks replicas, double backward_s);

  double exchange_s(const LayerExchange& exchange, double samples, int first_rank, const Plan& plan);
  double collective_s(CollectiveKind kind, Bytes message, Ranks ranks);
  /// The same in parts of any size, which start one after the other.
  double least_s(CollectiveKind kind, Bytes all, Ranks ranks);
  double message_s(int from, int to, Bytes message);
  /// Of as many messages as there are pairs the longest.
  double all_to_all_s(Bytes message, Ranks ranks);
  const NcclGraph* graph(Ranks ranks);

  PlanModels& models_;
  const Cluster cluster_;
  std::vector<int> places_;
  double fastest_host_ = 1.0;
  std::unique_ptr<NcclGraphs> graphs_;  ///< none where NCCL does not run
  std::map<std::tuple<CollectiveKind, double, Ranks>, double> collective_times_;
  std::map<std::pair<std::pair<int, int>, double>, double> message_times_;
  std::map<std::tuple<const Model*, int, int>, SegmentTimes> times_;  ///< by micro-batch and first rank
  std::map<std::tuple<const Model*, int, int, Range>, Activations> activations_;
};

}  // namespace stepcast
