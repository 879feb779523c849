#include "sim/plan/bounds.hpp"

#include <algorithm>
#include <limits>
#include <numeric>

#include "core/error.hpp"
#include "sim/collectives/nccl_reached.hpp"
#include "sim/collectives/nccl_tuning.hpp"
#include "sim/replay/costs.hpp"
#include "sim/strategies/local_step.hpp"
#include "topologies/devices.hpp"

namespace stepcast {
namespace {

bool repeats_blocks(const Model& model) {
  return std::any_of(model.segments.begin(), model.segments.end(),
                     [](const Segment& one) { return one.repeated; });
}

std::pair<int, int> whole_range(const Model& model) {
  return {0, static_cast<int>(model.segments.size()) - 1};
}

CollectiveKind kind_of(ExchangeKind kind) {
  if (kind == ExchangeKind::kAllGather) return CollectiveKind::kAllGather;
  if (kind == ExchangeKind::kAllToAll) return CollectiveKind::kAllToAll;
  return kind == ExchangeKind::kReduceScatter ? CollectiveKind::kReduceScatter : CollectiveKind::kAllReduce;
}

/// The bytes that a list of operations holds at most, one after the other, from `live` on.
class MemoryWalk {
 public:
  explicit MemoryWalk(const Costs& costs) : costs_(costs) {}
  double live = 0.0, peak = 0.0;

  /// \param beside bytes that are there while it runs
  void run(const Op& op, double beside = 0.0) {
    change(op, false);
    peak = std::max(peak, live + costs_.workspace_bytes(op) + beside);
    change(op, true);
  }

 private:
  void change(const Op& op, bool at_end) {
    for (const MemoryChange& one : op.memory)
      if (one.at_end == at_end) live += costs_.bytes(one);
  }
  const Costs& costs_;
};

double sum_of(const std::vector<double>& all) { return std::accumulate(all.begin(), all.end(), 0.0); }

/// Bytes of a parameter that travels, at least.
double gathered_element(const Model& model) {
  return bytes_of(model.precision.gather == "fp8" ? "fp8" : model.precision.parameters);
}

}  // namespace

/// What operations of one micro-batch on one rank hold.
class PlanBounds::LocalCosts {
 public:
  LocalCosts(const Model& model, const TraceEntry& trace, int samples)
      : input_(input_of(schedule_, model, trace, samples)), costs_(input_) {}
  LocalCosts(const LocalCosts&) = delete;
  LocalCosts& operator=(const LocalCosts&) = delete;
  [[nodiscard]] const Costs& costs() const { return costs_; }

 private:
  static ReplayInput input_of(const Schedule& schedule, const Model& model, const TraceEntry& trace,
                              int samples) {
    ReplayInput input;
    input.schedule = &schedule;
    input.model = &model;
    input.trace = &trace;
    input.batch = samples;
    return input;
  }
  const Schedule schedule_{};
  const ReplayInput input_;
  const Costs costs_;
};

PlanBounds::PlanBounds(PlanModels& models, bool links)
    : models_(models), cluster_(load_cluster(models.problem().cluster)), places_(cluster_.places()) {
  for (const Host& host : cluster_.hosts) fastest_host_ = std::max(fastest_host_, host.speed);
  if (links && cluster_.has_devices()) graphs_ = std::make_unique<NcclGraphs>(cluster_);
}

PlanBound PlanBounds::of(const Plan& plan) { return {step_s(plan), memory_bytes(plan)}; }

double PlanBounds::step_s(const Plan& plan) {
  const std::string& strategy = plan.text("strategy");
  if (strategy == "pipeline") return pipelined_s(view_of(plan));
  if (strategy == "fsdp") return sharded_s(view_of(plan));
  return strategy == "single" || strategy == "ddp" ? replicated_s(view_of(plan)) : 0.0;
}

double PlanBounds::ordered_step_s(const Plan& plan) {
  const double unordered = step_s(plan);
  return plan.text("strategy") == "pipeline" ? std::max(unordered, ordered_s(view_of(plan))) : unordered;
}

double PlanBounds::memory_bytes(const Plan& plan) {
  const std::string& strategy = plan.text("strategy");
  if (strategy == "pipeline") return pipelined_bytes(view_of(plan));
  if (strategy == "fsdp") return sharded_bytes(view_of(plan));
  return strategy == "single" || strategy == "ddp" ? replicated_bytes(view_of(plan)) : 0.0;
}

double PlanBounds::memory_limit() const {
  const double all = models_.device().memory.count();
  return all > 0.0 ? (1.0 - models_.problem().reserve) * all : std::numeric_limits<double>::infinity();
}

PlanBounds::View PlanBounds::view_of(const Plan& plan) {
  const std::string& recompute = plan.text("recompute");
  View view{.plan = plan,
            .model = *models_.part(plan),
            .samples = plan.micro_batch(models_.problem()),
            .recompute = recompute.empty() ? 0 : parse_recompute(recompute).blocks,
            .micro_batches = plan.number("micro-batches"),
            .tensor = plan.number("tensor"),
            .context = plan.number("context"),
            .expert = plan.number("expert"),
            .batches = plan.number("data"),
            .zero = plan.text("zero").empty() ? 0 : plan.number("zero"),
            .trace = nullptr,
            .host = nullptr,
            .stage_stride = 1,
            .batch_stride = 1};
  const bool inside = plan.stages_inside();
  view.stage_stride = view.tensor * (inside ? 1 : view.batches * view.context);
  view.batch_stride = view.tensor * (inside ? plan.number("pipeline") : 1);
  const StepEstimate& estimate = models_.estimate(view.model, view.samples);
  view.trace = &estimate.device;
  if (estimate.host) view.host = &*estimate.host;
  return view;
}

const NcclGraph* PlanBounds::graph(Ranks ranks) {
  if (!graphs_ || ranks.count < 2) return nullptr;
  std::vector<int> group;
  for (int i = 0; i < ranks.count; ++i)
    group.push_back(places_[static_cast<std::size_t>(ranks.first + i * ranks.stride)]);
  return &graphs_->of(group);
}

double PlanBounds::collective_s(CollectiveKind kind, Bytes message, Ranks ranks) {
  const auto [found, is_new] = collective_times_.try_emplace({kind, message.count(), ranks}, 0.0);
  if (is_new && message > Bytes(0))
    if (const NcclGraph* search = graph(ranks))
      found->second =
          nccl_reached(*search, kind, message, nccl_choice(*search, kind, message)).time(message).count();
  return found->second;
}

double PlanBounds::least_s(CollectiveKind kind, Bytes all, Ranks ranks) {
  const NcclGraph* search = graph(ranks);
  if (search == nullptr || all <= Bytes(0)) return 0.0;
  BytesPerSecond best;
  for (const NcclCost& cost : nccl_costs(*search, kind, all))
    best = std::max(best, nccl_reached(*search, kind, all, cost).algbw);
  return (all / best).count();
}

double PlanBounds::message_s(int from, int to, Bytes message) {
  if (!graphs_) return 0.0;
  const int here = places_[static_cast<std::size_t>(from)], there = places_[static_cast<std::size_t>(to)];
  const auto [found, is_new] = message_times_.try_emplace({{here, there}, message.count()}, 0.0);
  if (is_new) found->second = nccl_point_to_point(graphs_->pair(here, there), message).time(message).count();
  return found->second;
}

double PlanBounds::exchange_s(const View& view, const LayerCollective& exchange, int first_rank) {
  if (exchange.kind == ExchangeKind::kShift || exchange.kind == ExchangeKind::kWait)
    return 0.0;  // beside work
  Ranks ranks{first_rank, view.tensor, 1};
  if (exchange.group == ExchangeGroup::kContext) ranks = {first_rank, view.context, view.batch_stride};
  if (exchange.group == ExchangeGroup::kExpert) ranks = {first_rank, view.expert, view.batch_stride};
  const Bytes message = exchange.fixed + view.samples * exchange.per_sample;
  return exchange.kind == ExchangeKind::kAllToAll ? all_to_all_s(message, ranks)
                                                  : collective_s(kind_of(exchange.kind), message, ranks);
}

double PlanBounds::all_to_all_s(Bytes message, Ranks ranks) {
  double longest = 0.0;
  for (int peer = 1; peer < ranks.count; ++peer)
    longest = std::max(
        longest, message_s(ranks.first, ranks.first + peer * ranks.stride, (1.0 / ranks.count) * message));
  return longest;
}

int PlanBounds::like(const View& view, int first_rank) {
  if (!graphs_) return 0;
  const auto [found, is_new] =
      alike_.try_emplace({view.tensor, view.context, view.expert, view.batch_stride, first_rank}, first_rank);
  if (!is_new) return found->second;
  // Groups in which the smallest and the largest messages take equally long are alike.
  std::vector<double> probes;
  for (const double bytes : {kKibi, kGibi})
    for (const Ranks& ranks :
         {Ranks{first_rank, view.tensor, 1}, Ranks{first_rank, view.context, view.batch_stride},
          Ranks{first_rank, view.expert, view.batch_stride}})
      probes.push_back(ranks.count < 2 ? 0.0
                                       : collective_s(CollectiveKind::kAllReduce, Bytes(bytes), ranks) +
                                             all_to_all_s(Bytes(bytes), ranks));
  const auto kind =
      kinds_.try_emplace({view.tensor, view.context, view.expert, view.batch_stride, probes}, first_rank)
          .first;
  return found->second = kind->second;
}

const PlanBounds::SegmentTimes& PlanBounds::times(const View& view, int first_rank) {
  const int rank = like(view, first_rank);
  const auto [found, is_new] = times_.try_emplace({&view.model, view.samples, rank});
  if (is_new)
    found->second = sums_of(view, *view.trace, fastest_host_, [&](const LayerCollective& exchange) {
      return exchange_s(view, exchange, rank);
    });
  return found->second;
}

const PlanBounds::SegmentTimes& PlanBounds::issue_times(const View& view) {
  const auto [found, is_new] = times_.try_emplace({&view.model, view.samples, kIssued});
  if (is_new) found->second = sums_of(view, *view.host, 1.0, [](const LayerCollective&) { return 0.0; });
  return found->second;
}

PlanBounds::SegmentTimes PlanBounds::sums_of(
    const View& view, const TraceEntry& trace, double speed,
    const std::function<double(const LayerCollective&)>& exchange_s) {
  SegmentTimes all;
  const bool blocks = repeats_blocks(view.model);
  const auto exchanges_s = [&](const Segment& segment, bool backward) {
    double sum = 0.0;
    for (const int index : segment.exchanges)
      if (const LayerCollective& one = view.model.exchanges[static_cast<std::size_t>(index)];
          one.backward == backward)
        sum += exchange_s(one);
    return sum;
  };
  for (std::size_t i = 0; i < view.model.segments.size(); ++i) {
    const Segment& segment = view.model.segments[i];
    const SegmentTrace& own = trace.segments[i];
    const double forward = own.forward_s.front() / speed + exchanges_s(segment, false);
    all.forward_s.add(forward);
    const double backward = own.backward_s.front() / speed, exchanged = exchanges_s(segment, true);
    all.backward_s.add(backward + exchanged);
    all.weights_s.add(i > 0 ? own.weight_part.value_or(segment.weight_part(true)) * backward
                            : backward + exchanged);
    all.again_s.add(blocks && !segment.repeated ? 0.0 : forward);
    all.optimizer_s.add(own.optimizer_s.front() / speed);
  }
  if (models_.whole().loss == "none") return all;
  all.loss_s = trace.loss_s.front() / speed;
  for (const LayerCollective& exchange : view.model.exchanges)
    if (exchange.segment < 0) all.loss_s += exchange_s(exchange);
  return all;
}

/// With the loss.
double PlanBounds::forward_s(const View& view, const SegmentTimes& times, Range range) {
  return times.forward_s.of(range) + (range.second == whole_range(view.model).second ? times.loss_s : 0.0);
}

/// With what runs forward once more before it.
double PlanBounds::backward_s(const View& view, const SegmentTimes& times, Range range) {
  return times.backward_s.of(range) + (view.recompute > 0 ? times.again_s.of(range) : 0.0);
}

double PlanBounds::optimizer_s(const SegmentTimes& times, Range range) {
  return models_.whole().optimizer.kind == "none" ? 0.0 : times.optimizer_s.of(range);
}

double PlanBounds::issue_s(const View& view, Range range, int shards) {
  if (view.host == nullptr) return 0.0;
  const SegmentTimes& issued = issue_times(view);
  return view.micro_batches * (forward_s(view, issued, range) + backward_s(view, issued, range)) +
         optimizer_s(issued, range) / shards;
}

const PlanBounds::Holdings& PlanBounds::holdings(const Model& model) {
  const auto [found, is_new] = holdings_.try_emplace(&model);
  Holdings& all = found->second;
  if (!is_new) return all;
  for (const Segment& segment : model.segments) {
    double size = 0.0, gathered = 0.0, reduced = 0.0, gradient = 0.0, count = 0.0, dense = 0.0, last = 0.0,
           smallest = 0.0;
    for (const int tensor : segment.parameters) {
      const Parameter& parameter = model.parameters[static_cast<std::size_t>(tensor)];
      size += (parameter.size + parameter.copies).count();
      gathered += parameter.gathered().count();
      smallest =
          smallest > 0.0 ? std::min(smallest, parameter.gathered().count()) : parameter.gathered().count();
      reduced += parameter.reduced.count();
      gradient += parameter.gradient.count();
      count += static_cast<double>(parameter.numel());
      last = parameter.expert ? 0.0 : parameter.reduced.count();
      dense += last;
    }
    all.size.add(size), all.gathered.add(gathered), all.reduced.add(reduced), all.gradient.add(gradient),
        all.count.add(count);
    all.dense.add(dense);
    all.smallest.push_back(smallest);
    all.last.push_back(
        last);  // 0: a segment that reduces nothing ends its backward behind the others' gradients
  }
  return all;
}

double PlanBounds::reduction_tail_s(const View& view, Range range, Ranks replicas, double backward_s) {
  if (replicas.count == 1) return 0.0;
  const Holdings& held = holdings(view.model);
  const CollectiveKind kind = view.zero > 0 ? CollectiveKind::kReduceScatter : CollectiveKind::kAllReduce;
  return std::max(collective_s(kind, Bytes(held.last[static_cast<std::size_t>(range.first)]), replicas),
                  least_s(kind, Bytes(held.dense.of(range)), replicas) - backward_s);
}

double PlanBounds::after_backward_s(const View& view, Range range, Ranks replicas, double backward_s,
                                    double updates_s) {
  const double tail = reduction_tail_s(view, range, replicas, backward_s);
  if (view.zero == 0) return tail + updates_s;
  const Holdings& held = holdings(view.model);
  const Bytes last(held.smallest[static_cast<std::size_t>(range.first)]);  // its bucket has no less
  return tail +
         std::max(updates_s / replicas.count + collective_s(CollectiveKind::kAllGather, last, replicas),
                  least_s(CollectiveKind::kAllGather, Bytes(held.gathered.of(range)), replicas));
}

double PlanBounds::resident_bytes(const View& view, Range range, bool averaged) {
  const Model& model = view.model;
  const Holdings& held = holdings(model);
  const int sharers = PlanBounds::sharers(view);
  double bytes = held.size.of(range);
  if (sharers > 1) {
    const double copy = model.precision.master == "none" ? held.size.of(range) : 0.0;
    bytes += (copy + std::min(held.gradient.of(range), held.reduced.of(range))) / sharers;
  } else if (averaged) {
    bytes += held.reduced.of(range);
  }
  if (model.optimizer.kind != "none")
    bytes += (view.zero == 2 ? 0.0 : held.gradient.of(range)) +
             model.optimizer_bytes(held.count.of(range) / sharers).count();
  const bool has_ends = range.first == 0 || range.second == whole_range(model).second;
  if (has_ends) bytes += input_bytes(view);
  return bytes + models_.device().process.count();
}

double PlanBounds::input_bytes(const View& view) const {
  return 1.0 * view.samples * view.micro_batches * view.model.input_bytes().count();
}

const Costs& PlanBounds::local_costs(const View& view) {
  std::shared_ptr<const LocalCosts>& local = local_costs_[{&view.model, view.samples}];
  if (local == nullptr) local = std::make_shared<LocalCosts>(view.model, *view.trace, view.samples);
  return local->costs();
}

const PlanBounds::Activations& PlanBounds::activations(const View& view, Range range) {
  const bool halves = view.plan.text("schedule") == "zb-h1";
  const auto [found, is_new] =
      activations_.try_emplace({&view.model, view.samples, view.recompute, range, halves});
  Activations& result = found->second;
  if (!is_new) return result;
  const TrainingConfig config{.batch = view.samples, .recompute = view.recompute};
  std::vector<int> segments(static_cast<std::size_t>(range.second - range.first + 1));
  std::iota(segments.begin(), segments.end(), range.first);
  LocalStep step(view.model, config, segments);
  for (const int segment : segments) step.forward(segment, 0);
  const bool is_last = range.second == whole_range(view.model).second;
  if (is_last) step.loss(0);
  const bool sends_output = !is_last && step.recomputes(range.second);  // and needs it no more
  const double input = range.first > 0 ? step.output_bytes(range.first - 1).count() : 0.0;
  const double output = step.output_bytes(range.second).count();
  if (halves)
    for (int segment = range.second; segment >= range.first; --segment) {
      if (step.has(Phase::kBackwardInput, segment)) step.backward(segment, 0, {}, Phase::kBackwardInput);
    }
  else
    step.backward_all(0);
  const Program program = step.take();

  const Costs& costs = local_costs(view);
  MemoryWalk walk(costs);
  walk.live = input;
  std::size_t i = 0;
  const auto forward_ends = [&] {
    const auto* compute = std::get_if<Compute>(&program.ops[i].action);
    return compute->phase == Phase::kRecompute || is_backward(compute->phase);
  };
  for (; i < program.ops.size() && !forward_ends(); ++i) walk.run(program.ops[i]);
  result.forward_peak = walk.peak;
  if (sends_output) walk.live -= output;
  result.kept = walk.live;
  if (!is_last) walk.live += output;  // the gradient that it gets
  for (walk.peak = walk.live; i < program.ops.size(); ++i) walk.run(program.ops[i]);
  result.backward_peak = walk.peak;
  if (halves) result.waiting = walk.live - input;  // its gradient has been sent
  return result;
}

double PlanBounds::replicated_s(const View& view) {
  const Range all = whole_range(view.model);
  const SegmentTimes& alone = times(view, 0);
  const bool averaged = view.plan.text("strategy") == "ddp";
  const double backward = backward_s(view, alone, all);
  const Ranks replicas{0, averaged ? view.batches * view.context : 1, view.tensor};
  return std::max(issue_s(view, all, sharers(view)),
                  view.micro_batches * (forward_s(view, alone, all) + backward) +
                      after_backward_s(view, all, replicas, backward, optimizer_s(alone, all)));
}

double PlanBounds::replicated_bytes(const View& view) {
  const Range all = whole_range(view.model);
  const Activations& held = activations(view, all);
  return resident_bytes(view, all, view.plan.text("strategy") == "ddp") +
         std::max({held.forward_peak, held.backward_peak, shared_gradients_bytes(view, all)});
}

/// Where they do not stay: of a segment that has its backward.
double PlanBounds::shared_gradients_bytes(const View& view, Range range) {
  double most = 0.0;
  for (int segment = range.first; view.zero == 2 && segment <= range.second; ++segment)
    most = std::max(most, holdings(view.model).gradient.of({segment, segment}));
  return most;
}

PlanBounds::Stages PlanBounds::stages(const View& view) {
  Stages result{.shape = {view.plan.text("schedule"), view.plan.number("pipeline"), view.micro_batches,
                          view.plan.number("virtual-stages")},
                .chunks = {}};
  for (const std::vector<int>& chunk :
       split_model(view.model, view.plan.text("split"), result.shape.ranks * result.shape.virtual_stages, {}))
    result.chunks.emplace_back(chunk.front(), chunk.back());
  return result;
}

double PlanBounds::pipelined_s(const View& view) {
  const auto [shape, chunks] = stages(view);
  const int replicas = view.batches * view.context, neighbour = view.stage_stride;
  const auto count = static_cast<std::size_t>(shape.ranks);
  double before = 0.0;   // forwards and messages of what is before a rank
  double around = 0.0;   // and backwards and messages behind its last one
  double longest = 0.0;  // to the end of the first rank's last backward
  double bound = 0.0, after_first = 0.0;
  for (std::size_t rank = 0; rank < count; ++rank) {
    const int here = static_cast<int>(rank) * neighbour;
    const SegmentTimes& own = times(view, here);
    double busy = 0.0, updates = 0.0, issued = 0.0;
    for (std::size_t chunk = rank; chunk < chunks.size(); chunk += count) {
      issued += issue_s(view, chunks[chunk], sharers(view));
      busy +=
          shape.micro_batches * (forward_s(view, own, chunks[chunk]) + backward_s(view, own, chunks[chunk]));
      updates += optimizer_s(own, chunks[chunk]);
    }
    const double backward = backward_s(view, own, chunks[rank]);
    const double put_off = shape.schedule == "zb-h1" ? own.weights_s.of(chunks[rank]) : 0.0;
    const int left =
        std::min(static_cast<int>(rank) + 1, shape.micro_batches);  // behind its last input gradient
    longest = std::max(longest, around + busy - left * put_off);
    const double after =
        after_backward_s(view, chunks[rank], {here, replicas, view.batch_stride}, backward, updates);
    bound = std::max({bound, before + busy + after, issued});
    if (rank == 0) after_first = after;
    const auto last = static_cast<std::size_t>(chunks[rank].second);
    const double message =
        rank + 1 == count
            ? 0.0
            : message_s(here, here + neighbour, view.samples * view.model.segments[last].output_size);
    const double forward = forward_s(view, own, chunks[rank]);
    before += forward + message;
    around += forward + backward - put_off + 2.0 * message;
  }
  return std::max(bound, longest + after_first);
}

/// To the end of the first rank's step. Ranks do what their order says, one micro-batch and chunk after the other, when what
/// it comes after has been done and sent.
double PlanBounds::ordered_s(const View& view) {
  const auto [shape, chunks] = stages(view);
  const int replicas = view.batches * view.context, neighbour = view.stage_stride;
  struct ChunkCost {
    double forward = 0.0, backward = 0.0, weights = 0.0,
           message = 0.0;  ///< message: to the next chunk, and back from it
    [[nodiscard]] double of(Phase phase) const {
      if (phase == Phase::kForward) return forward;
      if (phase == Phase::kBackwardWeight) return weights;
      return phase == Phase::kBackward ? backward : backward - weights;
    }
  };
  std::vector<ChunkCost> costs;
  for (std::size_t chunk = 0; chunk < chunks.size(); ++chunk) {
    const int here = static_cast<int>(chunk) % shape.ranks * neighbour;
    const SegmentTimes& own = times(view, here);
    ChunkCost cost{forward_s(view, own, chunks[chunk]), backward_s(view, own, chunks[chunk]),
                   own.weights_s.of(chunks[chunk]), 0.0};
    if (chunk + 1 < chunks.size())
      cost.message = message_s(
          here, static_cast<int>(chunk + 1) % shape.ranks * neighbour,
          view.samples * view.model.segments[static_cast<std::size_t>(chunks[chunk].second)].output_size);
    costs.push_back(cost);
  }
  struct RankState {
    std::vector<PipelineAction> order;
    std::size_t next = 0;
    double free = 0.0;
  };
  std::vector<RankState> ranks(static_cast<std::size_t>(shape.ranks));
  for (int rank = 0; rank < shape.ranks; ++rank)
    ranks[static_cast<std::size_t>(rank)].order = pipeline_order(shape, rank, false);
  const auto parts = static_cast<std::size_t>(shape.micro_batches);
  constexpr double kNotYet = -1.0;
  std::vector<double> forward_end(chunks.size() * parts, kNotYet), backward_end(forward_end);
  const auto ready = [&](const PipelineAction& action) {
    const auto chunk = static_cast<std::size_t>(action.chunk),
               part = static_cast<std::size_t>(action.micro_batch);
    const bool forward = action.phase == Phase::kForward;
    if (action.phase == Phase::kBackwardWeight || (forward && chunk == 0)) return 0.0;
    if (!forward && chunk + 1 == chunks.size()) return forward_end[chunk * parts + part];
    const double before =
        forward ? forward_end[(chunk - 1) * parts + part] : backward_end[(chunk + 1) * parts + part];
    return before < 0.0 ? kNotYet : before + costs[forward ? chunk - 1 : chunk].message;
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (RankState& rank : ranks)
      for (; rank.next < rank.order.size(); ++rank.next, moved = true) {
        const PipelineAction& action = rank.order[rank.next];
        const double start = ready(action);
        if (start < 0.0) break;
        const auto chunk = static_cast<std::size_t>(action.chunk);
        rank.free = std::max(rank.free, start) + costs[chunk].of(action.phase);
        if (action.phase == Phase::kBackwardWeight) continue;
        (action.phase == Phase::kForward
             ? forward_end
             : backward_end)[chunk * parts + static_cast<std::size_t>(action.micro_batch)] = rank.free;
      }
  }
  const SegmentTimes& first = times(view, 0);
  double updates = 0.0;
  for (std::size_t chunk = 0; chunk < chunks.size(); chunk += static_cast<std::size_t>(shape.ranks))
    updates += optimizer_s(first, chunks[chunk]);
  return ranks.front().free + after_backward_s(view, chunks.front(), {0, replicas, view.batch_stride},
                                               costs.front().backward, updates);
}

double PlanBounds::pipelined_bytes(const View& view) {
  const auto [shape, chunks] = stages(view);
  const bool averaged = view.batches * view.context > 1;
  double bound = 0.0;
  for (int rank = 0; rank < shape.ranks; ++rank) {
    double resident = 0.0, live = 0.0, most = 0.0;
    for (auto chunk = static_cast<std::size_t>(rank); chunk < chunks.size();
         chunk += static_cast<std::size_t>(shape.ranks))
      resident += resident_bytes(view, chunks[chunk], averaged);
    resident -= (shape.virtual_stages - 1) * models_.device().process.count();
    for (const PipelineAction& action : first_actions(shape, rank)) {
      const Activations& held = activations(view, chunks[static_cast<std::size_t>(action.chunk)]);
      const bool forward = action.phase == Phase::kForward;
      if (action.phase != Phase::kBackwardWeight)
        most = std::max(most, live + (forward ? held.forward_peak : held.backward_peak - held.kept));
      live += forward ? held.kept : -held.kept;
      if (action.phase == Phase::kBackwardInput) live += held.waiting;
      if (action.phase == Phase::kBackwardWeight) live += held.kept - held.waiting;
    }
    bound = std::max(bound, resident + std::max(most, shared_gradients_bytes(
                                                          view, chunks[static_cast<std::size_t>(rank)])));
  }
  return bound;
}

const std::vector<PipelineAction>& PlanBounds::first_actions(const PipelineShape& shape, int rank) {
  const auto [found, is_new] =
      actions_.try_emplace({shape.schedule, shape.ranks, shape.micro_batches, shape.virtual_stages, rank});
  if (!is_new) return found->second;
  std::vector<PipelineAction> all = pipeline_order(shape, rank, false);
  const auto first =
      std::find_if(all.begin(), all.end(), [](const auto& one) { return one.phase != Phase::kForward; });
  const std::ptrdiff_t round = 2L * shape.ranks * shape.virtual_stages;
  all.erase(first + std::min(round, all.end() - first), all.end());
  all.shrink_to_fit();
  return found->second = std::move(all);
}

PlanBounds::ShardRanks PlanBounds::shard_ranks(const View& view) {
  const int copies = view.plan.copies(), shards = view.batches * view.context / copies;
  return {.shards = {0, shards, view.tensor},
          .experts = {0, shards / view.expert, view.tensor * view.expert},
          .replicas = {0, copies, view.tensor * shards}};
}

const PlanBounds::Units& PlanBounds::units(const Model& model) {
  const auto [found, is_new] = units_.try_emplace(&model);
  Units& all = found->second;
  if (!is_new) return all;
  all.elements = all.experts = {0.0};
  const bool blocks = repeats_blocks(model);
  for (const Segment& segment : model.segments) {
    const bool own = !segment.parameters.empty() && (segment.repeated || !blocks);
    all.of_segment.push_back(own ? static_cast<int>(all.elements.size()) : 0);
    if (own) all.elements.push_back(0.0), all.experts.push_back(0.0);
    const auto unit = static_cast<std::size_t>(all.of_segment.back());
    for (const int tensor : segment.parameters) {
      const Parameter& parameter = model.parameters[static_cast<std::size_t>(tensor)];
      (parameter.expert ? all.experts : all.elements)[unit] += static_cast<double>(parameter.numel());
    }
  }
  return all;
}

double PlanBounds::sharded_s(const View& view) {
  const Model& model = view.model;
  const Range all = whole_range(model);
  const SegmentTimes& alone = times(view, 0);
  const int parts = view.micro_batches;
  const ShardRanks ranks = shard_ranks(view);
  const int count = ranks.shards.count;
  const Units& of = units(model);
  const double parameter = gathered_element(model), reduced = bytes_of(model.precision.reduction);
  const double computed = parts * (forward_s(view, alone, all) + backward_s(view, alone, all));
  if (view.plan.text("sharding") == "no_shard")
    return std::max(
        issue_s(view, all),
        computed + collective_s(CollectiveKind::kAllReduce, Bytes(reduced * of.elements[0]), ranks.shards) +
            optimizer_s(alone, all));
  const bool keeps = view.plan.text("sharding") == "shard_grad_op";
  const auto gather_s = [&](double elements, Ranks among) {
    return collective_s(CollectiveKind::kAllGather, Bytes(parameter * elements), among);
  };
  const auto scatter_s = [&](double elements, Ranks among) {
    return collective_s(CollectiveKind::kReduceScatter, Bytes(reduced * elements), among);
  };
  const auto average_s = [&](double elements) {
    return collective_s(CollectiveKind::kAllReduce, Bytes(reduced * elements / count), ranks.replicas);
  };
  // Groups have streams of their own: what units, experts and replicas move may overlap.
  const double times_gathered = keeps ? 1.0 : 2.0 * parts;
  double units_s = 0.0, experts_s = 0.0, averaged_s = 0.0, waited = 0.0, after = 0.0;
  for (std::size_t i = 0; i < of.of_segment.size(); ++i) {
    const auto unit = static_cast<std::size_t>(of.of_segment[i]);
    if (unit > 0) {
      const double gather = gather_s(of.elements[unit], ranks.shards),
                   own = gather_s(of.experts[unit], ranks.experts);
      units_s += times_gathered * gather + scatter_s(of.elements[unit], ranks.shards);
      experts_s += times_gathered * own + scatter_s(of.experts[unit], ranks.experts);
      averaged_s += average_s(of.elements[unit]);
      waited += std::max(0.0, std::max(gather, own) - after);
    }
    after = after_exchanges_s(view, i);
  }
  const double root = gather_s(of.elements[0], ranks.shards);
  const double last = scatter_s(of.elements[0], ranks.shards) + average_s(of.elements[0]);
  // Forwards wait for every unit that was not gathered before, by a prefetch or a host that runs ahead.
  const bool ahead = view.host != nullptr || view.plan.text("forward-prefetch") == "yes";
  waited *= ahead ? 0 : keeps ? 1 : parts;
  return std::max(issue_s(view, all, count),
                  std::max({root + waited + computed + last, root + units_s + last, experts_s, averaged_s}) +
                      optimizer_s(alone, all) / count);
}

/// All-gathers that follow a segment's last exchange may hide behind what its forward computes then.
double PlanBounds::after_exchanges_s(const View& view, std::size_t segment) {
  double done = 1.0;
  for (const int exchange : view.model.segments[segment].exchanges)
    if (!view.model.exchanges[static_cast<std::size_t>(exchange)].backward)
      done = view.trace->exchange_fraction[static_cast<std::size_t>(exchange)];
  return (1.0 - done) * view.trace->segments[segment].forward_s.front();
}

double PlanBounds::sharded_bytes(const View& view) {
  const Model& model = view.model;
  if (view.plan.text("sharding") == "no_shard") {
    const Range all = whole_range(model);
    const Activations& held = activations(view, all);
    return resident_bytes(view, all, false) + std::max(held.forward_peak, held.backward_peak);
  }
  const ShardRanks ranks = shard_ranks(view);
  const Units& of = units(model);
  const double master = model.precision.master == "none" ? bytes_of(model.precision.parameters) : 0.0;
  const double gradient = std::min(bytes_of(model.precision.reduction), bytes_of(model.precision.gradients));
  const double own = sum_of(of.elements) / ranks.shards.count + sum_of(of.experts) / ranks.experts.count;
  const bool keeps = view.plan.text("sharding") == "shard_grad_op", accumulates = view.micro_batches > 1,
             alone = ranks.experts.count == 1;
  const auto [found, is_new] = sharded_peaks_.try_emplace(
      {&model, view.samples, view.recompute, 4 * keeps + 2 * accumulates + (alone ? 1 : 0)}, 0.0);
  if (is_new) {
    std::vector<double> gathered = of.elements;
    for (std::size_t u = 0; u < gathered.size() && !alone; ++u) gathered[u] += of.experts[u];
    found->second = sharded_peak(view, of.of_segment, gathered, keeps);
  }
  return own * (master + gradient) + model.optimizer_bytes(own).count() + input_bytes(view) +
         models_.device().process.count() + found->second;
}

double PlanBounds::sharded_peak(const View& view, const std::vector<int>& unit_of,
                                const std::vector<double>& elements, bool keeps) {
  const double parameter = gathered_element(view.model), gradient = bytes_of(view.model.precision.gradients);
  const TrainingConfig config{.batch = view.samples, .recompute = view.recompute};
  LocalStep step(view.model, config);
  step.forward_all(0);
  step.backward_all(0);
  const Program program = step.take();
  const Costs& costs = local_costs(view);
  MemoryWalk walk(costs);
  double until = 0.0;  // elements of the units that a forward has reached, but the root
  std::vector<double> before(elements.size(), 0.0);
  for (std::size_t u = 1; u < elements.size(); ++u) before[u] = until += elements[u];
  const bool accumulates = view.micro_batches > 1;
  for (const Op& op : program.ops) {
    const auto& compute = std::get<Compute>(op.action);
    const bool backward = compute.phase == Phase::kBackward || compute.phase == Phase::kRecompute;
    const auto unit = static_cast<std::size_t>(
        compute.segment < 0 ? unit_of.back() : unit_of[static_cast<std::size_t>(compute.segment)]);
    const double kept = unit == 0 ? (compute.segment == 0 ? 0.0 : until) : before[unit];
    const double gathered = elements[0] + (keeps ? kept : unit == 0 ? 0.0 : elements[unit]);
    const double graded = accumulates ? until + elements[0]
                          : backward  ? elements[0] + (unit == 0 ? 0.0 : elements[unit])
                                      : 0.0;
    walk.run(op, parameter * gathered + gradient * graded);
  }
  return walk.peak;
}

}  // namespace stepcast
