#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <vector>

#include "schedule/schedule.hpp"
#include "sim/collectives/nccl_graph.hpp"
#include "sim/plan/problem.hpp"
#include "sim/strategies/pipeline_layout.hpp"
#include "topologies/cluster.hpp"

/// What a plan takes and holds at least, in microseconds instead of a replay.
namespace stepcast {

class Costs;

struct PlanBound {
  double step_s = 0.0;
  double memory_bytes = 0.0;  ///< of the rank that holds most
};

/// Lower bounds of what `predict` says of a plan (a law holds them to that: tests/plan/bounds_test.cpp). Both are relaxations
/// of the replay that leave parts of it out and take nothing faster than it does:
///
///     time     what the rank with most to do computes, recomputation included, at the estimate's times (sim/replay/
///              device_scaling.hpp); what ranks that share its layers put together in the middle of that, each exchange alone
///              on its links (NCCL's formulas, beneath which no replay goes: nccl_run.cpp); of a pipeline that of the rank r
///              with most, max over r of sum_{q < r} (F_q + B_q + 2 messages) + m (F_r + B_r), F_q and B_q of the first chunk
///              of q, messages alone on their links; then what nothing can hide behind: the first all-gather, the last
///              gradient's reduction, the optimizer (shared by replicas: a rank's part, or the all-gathers). Where all gradients or gathers together take longer on their links,
///              or a host longer to issue what its rank computes, these.
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
  double step_s(const Plan& plan);
  /// The same of a pipeline in the order of its schedule, with all waits of its ranks for each other: nearer, in a hundred
  /// times the time. Of other strategies `step_s`.
  double ordered_step_s(const Plan& plan);
  double memory_bytes(const Plan& plan);  ///< of the rank that holds most
  PlanBound of(const Plan& plan);         ///< both
  /// Of the rank that holds most, as far as its device's memory counts.
  [[nodiscard]] double memory_limit() const;

 private:
  /// Ranks first, first + stride, ...
  struct Ranks {
    int first = 0, count = 1, stride = 1;
    auto operator<=>(const Ranks&) const = default;
  };
  /// First and last segment.
  class LocalCosts;
  using Range = std::pair<int, int>;
  /// Numbers by segment, of which sums over ranges are asked.
  class Sums {
   public:
    void add(double value) { until_.push_back(until_.back() + value); }
    [[nodiscard]] double of(Range range) const {
      return until_[static_cast<std::size_t>(range.second) + 1] -
             until_[static_cast<std::size_t>(range.first)];
    }

   private:
    std::vector<double> until_{0.0};
  };
  /// Of one micro-batch, exchanges included. `again_s`: what recomputation computes; `weights_s`: of the backward, what can be
  /// put off
  struct SegmentTimes {
    Sums forward_s, backward_s, again_s, weights_s, optimizer_s;
    double loss_s = 0.0;
  };
  /// Bytes of parameters, and of their gradients; `dense` and `last`: reduced among all replicas, and at the end;
  /// `smallest`: of a segment's.
  struct Holdings {
    Sums size, gathered, reduced, gradient, count, dense;
    std::vector<double> last, smallest;
  };
  /// What consecutive segments on one rank hold of one micro-batch, beside what they hold all the time.
  struct Activations {
    double forward_peak = 0.0;   ///< above what was there before the forward
    double kept = 0.0;           ///< between forward and backward
    double waiting = 0.0;        ///< between the halves of a backward; 0 where it has none
    double backward_peak = 0.0;  ///< above what was there before the backward
  };
  /// What FSDP gathers at once: parameters of one block, or of all that is in none, the root. As fsdp.cpp has them.
  struct Units {
    std::vector<int> of_segment;
    std::vector<double> elements, experts;  ///< the root's first; those that ranks share apart
  };
  /// FSDP's ranks: those with one copy in shards, of these those with the same experts, and those with the same shard.
  struct ShardRanks {
    Ranks shards, experts, replicas;
  };
  struct Stages {
    PipelineShape shape;
    std::vector<Range> chunks;
  };
  /// A plan, read.
  struct View {
    const Plan& plan;
    const Model& model;
    int samples;  ///< of a micro-batch
    int recompute, micro_batches, tensor, context, expert, batches;
    int zero;  ///< stage
    const TraceEntry* trace;
    const TraceEntry* host;  ///< null: none runs ahead of its device
    int stage_stride,
        batch_stride;  ///< in ranks, from one stage to the next, and from one replica or part of a sequence
  };

  View view_of(const Plan& plan);
  double replicated_s(const View& view);
  double sharded_s(const View& view);
  double pipelined_s(const View& view);
  double ordered_s(const View& view);
  double replicated_bytes(const View& view);
  double sharded_bytes(const View& view);
  double pipelined_bytes(const View& view);

  static ShardRanks shard_ranks(const View& view);
  const Units& units(const Model& model);
  /// Activations, gathered units of parameters and whole gradients of FSDP, at their most. \param elements gathered by unit
  double sharded_peak(const View& view, const std::vector<int>& unit_of, const std::vector<double>& elements,
                      bool keeps);
  double after_exchanges_s(const View& view, std::size_t segment);
  static Stages stages(const View& view);
  /// What a rank of a pipeline does until it has been through all its chunks behind the first backward: then it holds as
  /// much as ever.
  const std::vector<PipelineAction>& first_actions(const PipelineShape& shape, int rank);

  const SegmentTimes& times(const View& view, int first_rank);
  /// What hosts that run ahead take to issue the same. \pre there are some
  const SegmentTimes& issue_times(const View& view);
  SegmentTimes sums_of(const View& view, const TraceEntry& trace, double speed,
                       const std::function<double(const LayerCollective&)>& exchange_s);
  /// The first rank of groups that exchange as fast as those from `first_rank` on.
  int like(const View& view, int first_rank);
  static double forward_s(const View& view, const SegmentTimes& times, Range range);
  static double backward_s(const View& view, const SegmentTimes& times, Range range);
  double optimizer_s(const SegmentTimes& times, Range range);
  /// Of a host that issues all that its rank computes in a step; 0 where none runs ahead.
  double issue_s(const View& view, Range range, int shards = 1);
  /// Of operations of one micro-batch.
  const Costs& local_costs(const View& view);
  const Activations& activations(const View& view, Range range);
  const Holdings& holdings(const Model& model);
  /// Parameters, gradients, states and buckets of segments on one rank; `averaged` over replicas.
  double resident_bytes(const View& view, Range range, bool averaged);
  double shared_gradients_bytes(const View& view, Range range);
  [[nodiscard]] double input_bytes(const View& view) const;
  /// From the end of the last backward to that of the last reduction. \param backward_s the last one
  double reduction_tail_s(const View& view, Range range, Ranks replicas, double backward_s);
  /// The same to the end of the step. \param updates_s the optimizer where replicas do not share it
  double after_backward_s(const View& view, Range range, Ranks replicas, double backward_s, double updates_s);
  /// Of which each does its part of the optimizer; 1 where it is not shared.
  static int sharers(const View& view) { return view.zero > 0 ? view.batches * view.context : 1; }

  double exchange_s(const View& view, const LayerCollective& exchange, int first_rank);
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
  /// By tensor, context, expert and first rank; and the first of each kind by what probes take.
  std::map<std::tuple<int, int, int, int, int>, int> alike_;
  std::map<std::tuple<int, int, int, int, std::vector<double>>, int> kinds_;
  static constexpr int kIssued = -1;  ///< hosts' times, instead of a first rank
  std::map<std::tuple<const Model*, int, int>, SegmentTimes> times_;  ///< by micro-batch and first rank
  std::map<std::tuple<const Model*, int>, std::shared_ptr<const LocalCosts>> local_costs_;
  std::map<std::tuple<const Model*, int, int, Range, bool>, Activations> activations_;
  std::map<std::tuple<const Model*, int, int, int>, double> sharded_peaks_;
  std::map<const Model*, Holdings> holdings_;
  std::map<const Model*, Units> units_;
  std::map<std::tuple<std::string, int, int, int, int>, std::vector<PipelineAction>> actions_;
};

}  // namespace stepcast
