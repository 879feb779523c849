#include "sim/plan/bounds.hpp"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <ranges>

#include "core/ranges.hpp"
#include "sim/replay/device_estimate.hpp"
#include "sim/replay/dispatch.hpp"
#include "sim/replay/memory.hpp"
#include "sim/strategies/layout.hpp"
#include "sim/strategies/tensor_parallel.hpp"
#include "topologies/devices.hpp"

namespace stepcast {
namespace {

/// Replicas of the pipeline stage of `rank`, or the ranks that share one.
StridedRanks replicas_of(const PlanView& view, int rank) {
  return {rank * view.stage_stride, view.layout.shards, view.batch_stride};
}

/// Those of the replicas of a stage, or of the ranks that share one, that have the same experts: one if they
/// are at no equal distance.
StridedRanks expert_replicas(const PlanView& view, const StridedRanks& replicas) {
  const int apart = view.expert * view.expert_tensor;
  if (view.batch_stride != view.tensor) return {replicas.first, 1, 1};
  return {replicas.first, std::max(1, replicas.count * view.tensor / apart), apart};
}

/// Ranks with different experts, tensor-parallel ones first, unless these divide each expert; one if they are
/// at no equal distance.
StridedRanks expert_ranks(const PlanView& view, int first) {
  const int each = view.expert_tensor;
  if (view.expert * each <= view.tensor || view.batch_stride == view.tensor)
    return {first, view.expert, each};
  return view.tensor == each ? StridedRanks{first, view.expert, view.batch_stride}
                             : StridedRanks{first, 1, 1};
}

/// Time of the forward that is left after the last collective in it: an all-gather that follows may hide in
/// it.
double after_collectives_s(const PlanView& view, std::size_t segment) {
  double done = 1.0;
  for (const int index : view.model.segments[segment].collectives)
    if (!view.model.collectives[index].backward) done = view.costs.exchange_fraction[index];
  return (1.0 - done) * view.costs.segments[segment].forward.device_s;
}

/// Bytes that passes over the gradients of a unit move: the division before each reduction, with a conversion
/// to its dtype, and the sum of each shard but the first. \param copied by FSDP2, whose collectives divide
Bytes passed_gradients(const FsdpUnit& unit, double reductions, bool copied) {
  if (unit.alone()) return {};
  if (copied) return 5.0 * (reductions - 1.0) * unit.gradient_shard();
  const Bytes whole = unit.accumulated(), sent = unit.message();
  const Bytes converted = sent == whole ? Bytes(0) : whole + sent;
  return reductions * (2.0 * whole + converted) + 5.0 * (reductions - 1.0) * unit.gradient_shard();
}

/// Part of a segment's trained parameters that are experts, which other ranks may share.
double expert_part(const Model& model, const Segment& segment) {
  double experts = 0.0, all = 0.0;
  for (const int index : segment.parameters) {
    const auto count = static_cast<double>(model.parameters[index].numel());
    all += count;
    if (model.parameters[index].expert) experts += count;
  }
  return all > 0.0 ? experts / all : 0.0;
}

struct ChunkCost {
  double forward_s = 0.0, backward_s = 0.0;
  double weights_s = 0.0;  ///< of the backward
  double message_s = 0.0;  ///< to the next chunk, and back

  [[nodiscard]] double of(Phase phase) const {
    if (phase == Phase::kForward) return forward_s;
    if (phase == Phase::kBackwardWeight) return weights_s;
    return phase == Phase::kBackward ? backward_s : backward_s - weights_s;
  }
};

/// End of the first rank's actions in the order of a pipeline's schedule. An action starts when its rank is
/// free and its predecessor's result has arrived.
struct OrderedPipeline {
  const PipelineShape& shape;
  std::vector<ChunkCost> chunks;

  double end_of_first_rank() {
    struct RankState {
      std::vector<PipelineAction> order;
      std::size_t next = 0;
      double free_s = 0.0;
    };
    std::vector<RankState> ranks(shape.ranks);
    for (int rank = 0; rank < shape.ranks; ++rank) ranks[rank].order = pipeline_order(shape, rank, false);
    for (bool moved = true; moved;) {
      moved = false;
      for (RankState& rank : ranks)
        for (; rank.next < rank.order.size(); ++rank.next, moved = true) {
          const PipelineAction& action = rank.order[rank.next];
          const double start = ready_s(action);
          if (start < 0.0) break;
          rank.free_s = std::max(rank.free_s, start) + chunks[index(action.chunk)].of(action.phase);
          if (action.phase == Phase::kBackwardWeight) continue;
          (action.phase == Phase::kForward ? forward_end : backward_end)[at(action, 0)] = rank.free_s;
        }
    }
    return ranks.front().free_s;
  }

  static constexpr double kOpen = -1.0;  ///< not yet known

  static std::size_t index(int chunk) { return static_cast<std::size_t>(chunk); }
  [[nodiscard]] std::size_t at(const PipelineAction& action, int chunks_on) const {
    return index((action.chunk + chunks_on) * shape.micro_batches + action.micro_batch);
  }
  [[nodiscard]] double ready_s(const PipelineAction& action) const {
    const bool forward = action.phase == Phase::kForward;
    if (action.phase == Phase::kBackwardWeight || (forward && action.chunk == 0)) return 0.0;
    if (!forward && index(action.chunk) + 1 == chunks.size()) return forward_end[at(action, 0)];
    const double before = forward ? forward_end[at(action, -1)] : backward_end[at(action, 1)];
    return before < 0.0 ? kOpen : before + chunks[index(action.chunk - (forward ? 1 : 0))].message_s;
  }

  std::vector<double> forward_end = std::vector<double>(
                          chunks.size() * static_cast<std::size_t>(shape.micro_batches), kOpen),
                      backward_end = forward_end;  ///< by chunk and micro-batch
};

}  // namespace

PlanBounds::PlanBounds(PlanModels& models, bool links)
    : models_(models),
      cluster_(load_cluster(models.problem().cluster)),
      links_(cluster_, links),
      memory_(models) {
  for (const Host& host : cluster_.hosts) fastest_host_ = std::max(fastest_host_, host.speed);
}

double PlanBounds::step_s(const Plan& plan) {
  const PlanView view = view_of(models_, plan);
  return view.layout.fsdp ? sharded_s(view) : pipelined_s(view);
}

double PlanBounds::ordered_step_s(const Plan& plan, double unordered) {
  return plan.text("strategy") == "pipeline" ? std::max(unordered, ordered_s(view_of(models_, plan)))
                                             : unordered;
}

double PlanBounds::memory_bytes(const Plan& plan) {
  const PlanView view = view_of(models_, plan);
  return needed_bytes(view, memory_.peak_bytes(view));
}

double PlanBounds::least_memory_bytes(const Plan& plan) {
  const PlanView view = view_of(models_, plan);
  return needed_bytes(view, memory_.least_bytes(view));
}

double PlanBounds::needed_bytes(const PlanView& view, double allocated) const {
  const DeviceModel& device = models_.device();
  if (!device.gpu) return allocated;
  const double reserved = reserved_bytes(view.model, allocated, device.estimate.process.count());
  if (states_process(device)) return reserved;
  const bool in_stages = view.shape.ranks > 1;
  const int groups = (in_stages ? 1 : 0) + (view.tensor > 1 ? 1 : 0) + (view.layout.shards > 1 ? 1 : 0);
  return reserved + sum_of(std::views::values(outside_allocator(view.model, view.samples, groups, in_stages)),
                           std::identity());
}

double PlanBounds::memory_limit() const {
  const double all = models_.device().memory.count();
  return all > 0.0 ? (1.0 - models_.problem().reserve) * all : std::numeric_limits<double>::infinity();
}

double PlanBounds::layer_collective_s(const PlanView& view, const LayerCollective& collective,
                                      int first_rank) {
  if (collective.kind == LayerCollectiveKind::kShift || collective.kind == LayerCollectiveKind::kWait)
    return 0.0;  // concurrent with compute
  if (view.model.sums_in_last_micro_batch(collective)) return 0.0;
  StridedRanks ranks{first_rank, view.tensor, 1};
  if (collective.group == LayerCollectiveGroup::kContext)
    ranks = {first_rank, view.context, view.batch_stride};
  if (collective.group == LayerCollectiveGroup::kExpert) ranks = expert_ranks(view, first_rank);
  if (collective.group == LayerCollectiveGroup::kExpertTensor) ranks.count = view.expert_tensor;
  const Bytes message = collective.fixed + view.samples * collective.per_sample;
  const auto index = &collective - view.model.collectives.data();
  double alone = links_.collective_s(collective_kind(collective.kind), message, ranks);
  if (!view.costs.dispatches.empty() && ranks.count > 1)
    if (const DispatchCost& cost = view.costs.dispatches[index]; cost.sent > BytesPerSecond(0))
      alone = dispatched({}, cost, ranks.count).time(message).count();
  return view.costs.overlaps.empty() ? alone : alone - view.costs.overlaps[index].credit_s(alone);
}

int PlanBounds::first_alike(const PlanView& view, int first_rank) {
  if (links_.cost_nothing()) return 0;
  const GroupShape shape{view.tensor, view.context, view.expert, view.expert_tensor, view.batch_stride};
  const auto [found, is_new] = alike_.try_emplace({shape, first_rank}, first_rank);
  if (!is_new) return found->second;
  // Groups are alike if the smallest and the largest messages take equally long.
  std::vector<double> probes;
  for (const double bytes : {kKibi, kGibi})
    for (const StridedRanks& ranks :
         {StridedRanks{first_rank, view.tensor, 1}, StridedRanks{first_rank, view.context, view.batch_stride},
          expert_ranks(view, first_rank)})
      probes.push_back(ranks.count < 2
                           ? 0.0
                           : links_.collective_s(CollectiveKind::kAllReduce, Bytes(bytes), ranks) +
                                 links_.collective_s(CollectiveKind::kAllToAll, Bytes(bytes), ranks));
  return found->second = kinds_.try_emplace({shape, probes}, first_rank).first->second;
}

const PlanBounds::SegmentTimes& PlanBounds::times(const PlanView& view, int first_rank) {
  const int rank = first_alike(view, first_rank);
  const auto time = [&](const LayerCollective& one) { return layer_collective_s(view, one, rank); };
  return cached(times_, {&view.costs, rank},
                [&] { return sums_of(view, &PhaseCost::device_s, fastest_host_, time); });
}

const PlanBounds::SegmentTimes& PlanBounds::issue_times(const PlanView& view) {
  const auto none = [](const LayerCollective&) { return 0.0; };
  return cached(times_, {&view.costs, kIssued},
                [&] { return sums_of(view, &PhaseCost::launch_s, 1.0, none); });
}

PlanBounds::SegmentTimes PlanBounds::sums_of(const PlanView& view, double PhaseCost::*part, double speed,
                                             const CollectiveTime& time) {
  SegmentTimes all;
  const bool blocks = repeats_blocks(view.model);
  const auto collectives_s = [&](const Segment& segment, bool backward) {
    double sum = 0.0;
    for (const int index : segment.collectives)
      if (const LayerCollective& one = view.model.collectives[index]; one.backward == backward)
        sum += time(one);
    return sum;
  };
  for (std::size_t i = 0; i < view.model.segments.size(); ++i) {
    const Segment& segment = view.model.segments[i];
    const SegmentCosts& own = view.costs.segments[i];
    const double forward = own.forward.*part / speed + collectives_s(segment, false);
    const double backward = own.backward.*part / speed, inside = collectives_s(segment, true);
    all.forward_s.add(forward);
    all.backward_s.add(backward + inside);
    all.weights_s.add(
        segment.passes_gradient()
            ? (part == &PhaseCost::launch_s ? own.weight_launch_fraction : own.weight_fraction) * backward
            : backward + inside);
    double again = forward;
    if (view.model.execution.recomputed == "needed" && segment.repeated)
      again = (part == &PhaseCost::launch_s ? own.needed_launch_fraction : own.needed_fraction) *
                  (own.forward.*part / speed) +
              sum_of(segment.collectives, [&](int index) {
                const LayerCollective& one = view.model.collectives[index];
                return one.backward || !segment.needs(one) ? 0.0 : time(one);
              });
    all.recompute_s.add((blocks && !segment.repeated) || !segment.has_backward() ? 0.0 : again);
    const double experts = expert_part(view.model, segment);
    const double update = std::min({1.0, view.model.shard_update(false), view.model.shard_update(true)});
    const double optimizer = update * own.optimizer.*part / speed;
    all.optimizer_s.add((1.0 - experts) * optimizer);
    all.expert_optimizer_s.add(experts * optimizer);
  }
  if (models_.whole().loss.kind == "none") return all;
  all.loss_s = view.costs.loss.*part / speed;
  for (const LayerCollective& one : view.model.collectives)
    if (one.segment < 0) all.loss_s += time(one);
  return all;
}

double PlanBounds::forward_s(const PlanView& view, const SegmentTimes& times, SegmentRange range) {
  return times.forward_s.of(range) + (range.second == whole_range(view.model).second ? times.loss_s : 0.0);
}

double PlanBounds::backward_s(const PlanView& view, const SegmentTimes& times, SegmentRange range) {
  return times.backward_s.of(range) +
         (view.recompute.blocks > 0 && !view.recompute.partial() ? times.recompute_s.of(range) : 0.0);
}

double PlanBounds::optimizer_s(const PlanView& view, const SegmentTimes& times, SegmentRange range,
                               int shards) {
  if (models_.whole().optimizer.kind == "none") return 0.0;
  return times.optimizer_s.of(range) / shards +
         times.expert_optimizer_s.of(range) / view.expert_shards(shards);
}

double PlanBounds::issue_s(const PlanView& view, SegmentRange range, int shards) {
  if (!view.costs.asynchronous) return 0.0;
  const SegmentTimes& issued = issue_times(view);
  return view.shape.micro_batches * (forward_s(view, issued, range) + backward_s(view, issued, range)) +
         optimizer_s(view, issued, range, shards);
}

double PlanBounds::boundary_s(const PlanView& view, std::size_t chunk) {
  if (chunk + 1 >= view.chunks.size()) return 0.0;
  const int here = static_cast<int>(chunk) % view.shape.ranks,
            there = static_cast<int>(chunk + 1) % view.shape.ranks;
  const auto last = static_cast<std::size_t>(view.chunks[chunk].second);
  return links_.message_s(here * view.stage_stride, there * view.stage_stride,
                          view.samples * view.model.segments[last].output_size);
}

double PlanBounds::after_backward_s(const PlanView& view, std::size_t rank, double backward_s,
                                    double updates_s) {
  const StridedRanks replicas = replicas_of(view, static_cast<int>(rank)),
                     others = expert_replicas(view, replicas);
  if (replicas.count == 1) return updates_s;
  const SegmentRange range = view.chunks[rank];
  const auto first = static_cast<std::size_t>(range.first);
  const SegmentBytes& held = memory_.segment_bytes(view.model);
  const Layout::Gather gathered = view.layout.gather;
  const CollectiveKind kind = gathered == Layout::Gather::kNever || view.layout.all_reduces
                                  ? CollectiveKind::kAllReduce
                                  : CollectiveKind::kReduceScatter;
  const double reduced = std::max(links_.pieces_s(kind, Bytes(held.dense.reduced.of(range)), replicas),
                                  links_.pieces_s(kind, Bytes(held.experts.reduced.of(range)), others));
  // A segment that reduces nothing ends its backward after the gradients of the others.
  const double tail = std::max(links_.collective_s(kind, Bytes(held.last[first]), replicas),
                               reduced - (view.layout.waits ? 0.0 : backward_s));
  if (gathered != Layout::Gather::kAfterUpdate) return tail + updates_s;
  // The last bucket is not smaller than the smallest parameter; experts are gathered among fewer ranks, or
  // not.
  const double last_gather =
      view.expert * view.expert_tensor > 1
          ? 0.0
          : links_.collective_s(CollectiveKind::kAllGather, Bytes(held.smallest[first]), replicas);
  const auto gathered_s = [&](const SegmentBytes::Shared& shared, StridedRanks ranks) {
    return links_.pieces_s(CollectiveKind::kAllGather, Bytes(shared.gathered.of(range)), ranks);
  };
  return tail + std::max({updates_s + last_gather, gathered_s(held.dense, replicas),
                          gathered_s(held.experts, others)});
}

double PlanBounds::pipelined_s(const PlanView& view) {
  const auto& chunks = view.chunks;
  const auto count = static_cast<std::size_t>(view.shape.ranks);
  const int parts = view.shape.micro_batches;
  // Forwards, backwards and messages of the ranks before, within which this rank computes. Its updates may
  // end later, beside the next step.
  double around = 0.0;
  double longest = 0.0;  // to the end of the first rank's last backward
  double bound = 0.0, after_first = 0.0;
  for (std::size_t rank = 0; rank < count; ++rank) {
    const SegmentTimes& own = times(view, static_cast<int>(rank) * view.stage_stride);
    double busy = 0.0, updates = 0.0, issued = 0.0;
    for (std::size_t chunk = rank; chunk < chunks.size(); chunk += count) {
      issued += issue_s(view, chunks[chunk], view.layout.sharers());
      busy += parts * (forward_s(view, own, chunks[chunk]) + backward_s(view, own, chunks[chunk]));
      updates += optimizer_s(view, own, chunks[chunk], view.layout.sharers());
    }
    const double forward = forward_s(view, own, chunks[rank]), backward = backward_s(view, own, chunks[rank]);
    const double deferred = view.splits_backward() ? own.weights_s.of(chunks[rank]) : 0.0;
    const int left = std::min(static_cast<int>(rank) + 1, parts);  // after its last input gradient
    longest = std::max(longest, around + busy - left * deferred);
    const double after = after_backward_s(view, rank, backward, updates);
    bound = std::max({bound, busy + after, issued});
    if (rank == 0) after_first = after;
    const double message = rank + 1 == count ? 0.0 : boundary_s(view, rank);
    around += forward + backward - deferred + 2.0 * message;
  }
  return std::max(bound, longest + after_first);
}

double PlanBounds::ordered_s(const PlanView& view) {
  std::vector<ChunkCost> costs;
  for (std::size_t i = 0; i < view.chunks.size(); ++i) {
    const SegmentTimes& own = times(view, static_cast<int>(i) % view.shape.ranks * view.stage_stride);
    costs.push_back({.forward_s = forward_s(view, own, view.chunks[i]),
                     .backward_s = backward_s(view, own, view.chunks[i]),
                     .weights_s = own.weights_s.of(view.chunks[i]),
                     .message_s = boundary_s(view, i)});
  }
  const SegmentTimes& first = times(view, 0);
  double updates = 0.0;
  for (std::size_t chunk = 0; chunk < view.chunks.size(); chunk += static_cast<std::size_t>(view.shape.ranks))
    updates += optimizer_s(view, first, view.chunks[chunk], view.layout.sharers());
  const double backward = costs.front().backward_s;
  return OrderedPipeline{view.shape, std::move(costs)}.end_of_first_rank() +
         after_backward_s(view, 0, backward, updates);
}

double PlanBounds::sharded_s(const PlanView& view) {
  const SegmentRange all = view.chunks.front();
  const SegmentTimes& own = times(view, 0);
  const std::vector<FsdpUnit>& units = memory_.units(view, view.layout);
  const int parts = view.shape.micro_batches, shards = view.layout.shards;
  const StridedRanks copy{0, shards, view.tensor}, replicas{0, view.layout.replicas, view.tensor * shards};
  const int apart = view.expert * view.expert_tensor;
  const StridedRanks same_experts{0, shards * view.tensor / apart, apart};
  const double computed = parts * (forward_s(view, own, all) + backward_s(view, own, all));
  const auto gather_s = [&](const FsdpUnit& unit, StridedRanks ranks) {
    return links_.collective_s(CollectiveKind::kAllGather, unit.size(), ranks);
  };
  const auto reduce_s = [&](const FsdpUnit& unit, StridedRanks ranks) {
    return unit.trains() ? links_.collective_s(CollectiveKind::kReduceScatter, unit.message(), ranks) : 0.0;
  };
  const auto average_s = [&](const FsdpUnit& unit) {
    return unit.trains() ? links_.collective_s(CollectiveKind::kAllReduce, unit.gradient_shard(), replicas)
                         : 0.0;
  };
  // The root is gathered first; if it has the first segment, it is reduced last.
  const FsdpUnit& first = units.front();
  if (!first.sharded)
    return std::max(issue_s(view, all),
                    computed + links_.collective_s(CollectiveKind::kAllReduce, first.message(), copy) +
                        optimizer_s(view, own, all, 1));
  // Groups have streams of their own: transfers of units, experts and replicas may overlap.
  const bool keeps = view.layout.gather == Layout::Gather::kBackward;
  const double reductions = view.layout.reduces_each ? parts : 1.0;
  const double gathers = keeps ? reductions : 2.0 * parts;
  const bool copied = view.model.execution.gathered == "copied";
  const DeviceModel& device = models_.device();
  const BytesPerSecond memory = device.estimate.memory_efficiency * device.memory_bandwidth;
  double units_s = 0.0, experts_s = 0.0, averaged_s = 0.0, passes_s = 0.0;
  for (const FsdpUnit& unit : units)
    if (device.gpu) passes_s += (passed_gradients(unit, reductions, copied) / memory).count();
  std::vector<double> waits(view.model.segments.size());
  for (std::size_t i = 1; i < units.size(); ++i) {
    const FsdpUnit& unit = units[i];
    const bool experts = unit.name.ends_with(kExpertUnits);
    const double gather = gather_s(unit, experts ? same_experts : copy);
    const bool again = std::ranges::any_of(
        unit.segments, [&](int segment) { return view.model.segments[segment].has_backward(); });
    (experts ? experts_s : units_s) += (again ? gathers : std::min<double>(gathers, parts)) * gather +
                                       reductions * reduce_s(unit, experts ? same_experts : copy);
    if (!experts) averaged_s += (view.layout.averages_each ? reductions : 1.0) * average_s(unit);
    const auto segment = static_cast<std::size_t>(unit.segments.front());
    if (segment > 0)
      waits[segment] = std::max(waits[segment], gather - after_collectives_s(view, segment - 1));
  }
  const double root = gather_s(first, copy);
  const double last = first.segments.front() == 0 ? reduce_s(first, copy) + average_s(first) : 0.0;
  // Forwards wait for every unit that neither a prefetch nor an asynchronous launch gathers before.
  const bool ahead = view.costs.asynchronous || view.plan.text("forward-prefetch") == "yes";
  const double waited = (ahead ? 0 : keeps ? 1 : parts) * std::accumulate(waits.begin(), waits.end(), 0.0);
  return std::max(issue_s(view, all, shards), std::max({root + waited + computed + passes_s + last,
                                                        root + units_s + last, experts_s, averaged_s}) +
                                                  optimizer_s(view, own, all, shards));
}

}  // namespace stepcast
