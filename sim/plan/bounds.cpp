#include "sim/plan/bounds.hpp"

#include <algorithm>
#include <limits>
#include <numeric>

#include "core/error.hpp"
#include "sim/collectives/nccl_tuning.hpp"
#include "sim/plan/pipeline_path.hpp"
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

/// What operations of one micro-batch on one rank hold.
class LocalCosts {
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

/// What FSDP gathers at once: parameters of one block, or of all that is in none, the root. As fsdp.cpp has them.
struct Units {
  std::vector<int> of_segment;
  std::vector<double> elements, experts;  ///< the root's first; those that ranks share apart

  explicit Units(const Model& model) : elements(1, 0.0), experts(1, 0.0) {
    const bool blocks = repeats_blocks(model);
    for (const Segment& segment : model.segments) {
      const bool own = !segment.parameters.empty() && (segment.repeated || !blocks);
      of_segment.push_back(own ? static_cast<int>(elements.size()) : 0);
      if (own) elements.push_back(0.0), experts.push_back(0.0);
      const auto unit = static_cast<std::size_t>(of_segment.back());
      for (const int tensor : segment.parameters) {
        const Parameter& parameter = model.parameters[static_cast<std::size_t>(tensor)];
        (parameter.expert ? experts : elements)[unit] += static_cast<double>(parameter.numel());
      }
    }
  }
};

double sum_of(const std::vector<double>& all) { return std::accumulate(all.begin(), all.end(), 0.0); }

}  // namespace

PlanBounds::PlanBounds(PlanModels& models, bool links)
    : models_(models), cluster_(load_cluster(models.problem().cluster)), places_(cluster_.places()) {
  for (const Host& host : cluster_.hosts) fastest_host_ = std::max(fastest_host_, host.speed);
  if (links && cluster_.has_devices()) graphs_ = std::make_unique<NcclGraphs>(cluster_);
}

PlanBound PlanBounds::of(const Plan& plan) {
  static const std::map<std::string, PlanBound (PlanBounds::*)(const Plan&)> kByStrategy{
      {"single", &PlanBounds::replicated},
      {"ddp", &PlanBounds::replicated},
      {"fsdp", &PlanBounds::sharded},
      {"pipeline", &PlanBounds::pipelined}};
  const auto found = kByStrategy.find(plan.text("strategy"));
  return found == kByStrategy.end() ? PlanBound{} : (this->*found->second)(plan);
}

double PlanBounds::memory_limit() const {
  const double all = models_.device().memory.count();
  return all > 0.0 ? (1.0 - models_.problem().reserve) * all : std::numeric_limits<double>::infinity();
}

PlanBounds::Part PlanBounds::part_of(const Plan& plan) {
  const std::string& recompute = plan.text("recompute");
  return {models_.part(plan), plan.micro_batch(models_.problem()),
          recompute.empty() ? 0 : parse_recompute(recompute)};
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
      found->second = nccl_choice(*search, kind, message).time(message).count();
  return found->second;
}

double PlanBounds::least_s(CollectiveKind kind, Bytes all, Ranks ranks) {
  const NcclGraph* search = graph(ranks);
  if (search == nullptr || all <= Bytes(0)) return 0.0;
  BytesPerSecond best;
  for (const NcclCost& cost : nccl_costs(*search, kind, all)) best = std::max(best, cost.algbw);
  return (all / best).count();
}

double PlanBounds::message_s(int from, int to, Bytes message) {
  if (!graphs_) return 0.0;
  const int here = places_[static_cast<std::size_t>(from)], there = places_[static_cast<std::size_t>(to)];
  const auto [found, is_new] = message_times_.try_emplace({{here, there}, message.count()}, 0.0);
  if (is_new) found->second = nccl_point_to_point(graphs_->pair(here, there), message).time(message).count();
  return found->second;
}

double PlanBounds::exchange_s(const LayerExchange& exchange, double samples, int first_rank,
                              const Plan& plan) {
  const int tensor = plan.number("tensor");
  Ranks ranks{first_rank, tensor, 1};
  if (exchange.group == ExchangeGroup::kContext) ranks = {first_rank, plan.number("context"), tensor};
  if (exchange.group == ExchangeGroup::kExpert) ranks = {first_rank, plan.number("expert"), tensor};
  const Bytes message = exchange.fixed + samples * exchange.per_sample;
  return exchange.kind == ExchangeKind::kAllToAll ? all_to_all_s(message, ranks)
                                                  : collective_s(kind_of(exchange.kind), message, ranks);
}

double PlanBounds::all_to_all_s(Bytes message, Ranks ranks) {
  double longest = 0.0;
  for (int peer = 1; peer < ranks.count; ++peer)
    longest = std::max(longest, message_s(ranks.first, ranks.first + peer * ranks.stride,
                                          (1.0 / ranks.count) * message));
  return longest;
}

const PlanBounds::SegmentTimes& PlanBounds::times(const Plan& plan, int first_rank) {
  const Part part = part_of(plan);
  const auto [found, is_new] = times_.try_emplace({part.model, part.samples, first_rank});
  SegmentTimes& all = found->second;
  if (!is_new) return all;
  const TraceEntry& trace = models_.estimate(plan, part.samples);
  all.loss_s = trace.loss_s.front() / fastest_host_;
  for (const SegmentTrace& segment : trace.segments) {
    all.forward_s.push_back(segment.forward_s.front() / fastest_host_);
    all.backward_s.push_back(segment.backward_s.front() / fastest_host_);
  }
  for (const LayerExchange& exchange : part.model->exchanges) {
    const double seconds = exchange_s(exchange, part.samples, first_rank, plan);
    if (exchange.segment < 0)
      all.loss_s += seconds;
    else
      (exchange.backward ? all.backward_s : all.forward_s)[static_cast<std::size_t>(exchange.segment)] +=
          seconds;
  }
  return all;
}

/// With the loss.
double PlanBounds::forward_s(const Plan& plan, const SegmentTimes& times, Range range) {
  const auto begin = times.forward_s.begin();
  const double sum = std::accumulate(begin + range.first, begin + range.second + 1, 0.0);
  const bool is_last = range.second == whole_range(*part_of(plan).model).second;
  return sum + (is_last && models_.whole().loss != "none" ? times.loss_s : 0.0);
}

/// With what runs forward once more before it.
double PlanBounds::backward_s(const Plan& plan, const SegmentTimes& times, Range range) {
  const Part part = part_of(plan);
  const bool blocks = repeats_blocks(*part.model);
  double sum = 0.0;
  for (auto i = static_cast<std::size_t>(range.first); i <= static_cast<std::size_t>(range.second); ++i) {
    sum += times.backward_s[i];
    if (part.recompute > 0 && (!blocks || part.model->segments[i].repeated)) sum += times.forward_s[i];
  }
  return sum;
}

double PlanBounds::optimizer_s(const Plan& plan, Range range) {
  if (models_.whole().optimizer.kind == "none") return 0.0;
  const TraceEntry& trace = models_.estimate(plan, part_of(plan).samples);
  double sum = 0.0;
  for (int i = range.first; i <= range.second; ++i)
    sum += trace.segments[static_cast<std::size_t>(i)].optimizer_s.front();
  return sum / fastest_host_;
}

double PlanBounds::reduction_tail_s(const Plan& plan, Range range, Ranks replicas, double backward_s) {
  if (replicas.count == 1) return 0.0;
  const Model& model = *part_of(plan).model;
  Bytes all, last;
  for (int i = range.second; i >= range.first; --i) {
    last = Bytes(0);  // a segment that reduces nothing ends the backward behind the others' gradients
    for (const int tensor : model.segments[static_cast<std::size_t>(i)].parameters) {
      const Parameter& parameter = model.parameters[static_cast<std::size_t>(tensor)];
      last = parameter.expert ? Bytes(0) : parameter.reduced;
      all += last;
    }
  }
  return std::max(collective_s(CollectiveKind::kAllReduce, last, replicas),
                  least_s(CollectiveKind::kAllReduce, all, replicas) - backward_s);
}

double PlanBounds::resident_bytes(const Plan& plan, Range range, bool averaged) {
  const Model& model = *part_of(plan).model;
  double bytes = 0.0, count = 0.0;
  for (int i = range.first; i <= range.second; ++i)
    for (const int tensor : model.segments[static_cast<std::size_t>(i)].parameters) {
      const Parameter& parameter = model.parameters[static_cast<std::size_t>(tensor)];
      bytes += (parameter.size + (averaged ? parameter.reduced : Bytes(0))).count();
      if (model.optimizer.kind != "none") bytes += parameter.gradient.count();
      count += static_cast<double>(parameter.numel());
    }
  if (model.optimizer.kind != "none") bytes += model.optimizer_bytes(count).count();
  const bool has_ends = range.first == 0 || range.second == whole_range(model).second;
  if (has_ends) bytes += models_.problem().samples / plan.number("data") * model.input_bytes().count();
  return bytes + models_.device().process.count();
}

const PlanBounds::Activations& PlanBounds::activations(const Plan& plan, Range range) {
  const Part part = part_of(plan);
  const auto [found, is_new] = activations_.try_emplace({part.model, part.samples, part.recompute, range});
  Activations& result = found->second;
  if (!is_new) return result;
  const TrainingConfig config{.batch = part.samples, .recompute = part.recompute};
  std::vector<int> segments(static_cast<std::size_t>(range.second - range.first + 1));
  std::iota(segments.begin(), segments.end(), range.first);
  LocalStep step(*part.model, config, segments);
  for (const int segment : segments) step.forward(segment, 0);
  const bool is_last = range.second == whole_range(*part.model).second;
  if (is_last) step.loss(0);
  const bool sends_output = !is_last && step.recomputes(range.second);  // and needs it no more
  const double input = range.first > 0 ? step.output_bytes(range.first - 1).count() : 0.0;
  const double output = step.output_bytes(range.second).count();
  step.backward_all(0);
  const Program program = step.take();

  const LocalCosts local(*part.model, models_.estimate(plan, part.samples), part.samples);
  MemoryWalk walk(local.costs());
  walk.live = input;
  std::size_t i = 0;
  const auto forward_ends = [&] {
    const auto* compute = std::get_if<Compute>(&program.ops[i].action);
    return compute->phase == Phase::kRecompute || compute->phase == Phase::kBackward;
  };
  for (; !forward_ends(); ++i) walk.run(program.ops[i]);
  result.forward_peak = walk.peak;
  if (sends_output) walk.live -= output;
  result.kept = walk.live;
  if (!is_last) walk.live += output;  // the gradient that it gets
  for (walk.peak = walk.live; i < program.ops.size(); ++i) walk.run(program.ops[i]);
  result.backward_peak = walk.peak;
  return result;
}

PlanBound PlanBounds::replicated(const Plan& plan) {
  const Range all = whole_range(*part_of(plan).model);
  const SegmentTimes& alone = times(plan, 0);
  const int tensor = plan.number("tensor"), replicas = plan.number("data") * plan.number("context");
  const bool averaged = plan.text("strategy") == "ddp";
  const double backward = backward_s(plan, alone, all);
  PlanBound bound;
  bound.step_s = plan.number("micro-batches") * (forward_s(plan, alone, all) + backward) +
                 reduction_tail_s(plan, all, {0, averaged ? replicas : 1, tensor}, backward) +
                 optimizer_s(plan, all);
  const Activations& held = activations(plan, all);
  bound.memory_bytes = resident_bytes(plan, all, averaged) + std::max(held.forward_peak, held.backward_peak);
  return bound;
}

PlanBound PlanBounds::pipelined(const Plan& plan) {
  const Model& model = *part_of(plan).model;
  const int tensor = plan.number("tensor"), replicas = plan.number("data") * plan.number("context");
  const PipelineShape shape{plan.text("schedule"), plan.number("pipeline"), plan.number("micro-batches"),
                            plan.number("virtual-stages")};
  const int neighbour = replicas * tensor;
  PipelinePath path(shape);
  std::vector<Range> ranges;
  for (const std::vector<int>& chunk :
       split_model(model, plan.text("split"), shape.ranks * shape.virtual_stages, {})) {
    const auto index = static_cast<int>(ranges.size());
    const int here = index % shape.ranks, next = (index + 1) % shape.ranks;
    ranges.emplace_back(chunk.front(), chunk.back());
    const SegmentTimes& own = times(plan, here * neighbour);
    path.forward_s.push_back(forward_s(plan, own, ranges.back()));
    path.backward_s.push_back(backward_s(plan, own, ranges.back()));
    path.message_s.push_back(message_s(
        here * neighbour, next * neighbour,
        part_of(plan).samples * model.segments[static_cast<std::size_t>(chunk.back())].output_size));
  }
  const std::vector<double> ends = path.ends();
  PlanBound bound;
  for (int rank = 0; rank < shape.ranks; ++rank) {
    double busy = 0.0, resident = 0.0, tail = 0.0, updates = 0.0, live = 0.0, most = 0.0;
    for (std::size_t chunk = static_cast<std::size_t>(rank); chunk < ranges.size();
         chunk += static_cast<std::size_t>(shape.ranks)) {
      busy += shape.micro_batches * (path.forward_s[chunk] + path.backward_s[chunk]);
      updates += optimizer_s(plan, ranges[chunk]);
      resident += resident_bytes(plan, ranges[chunk], replicas > 1);
      if (chunk == static_cast<std::size_t>(rank))
        tail = reduction_tail_s(plan, ranges[chunk], {rank * neighbour, replicas, tensor},
                                path.backward_s[chunk]);
    }
    for (const PipelineAction& action : pipeline_order(shape, rank, false)) {
      const Activations& held = activations(plan, ranges[static_cast<std::size_t>(action.chunk)]);
      most = std::max(most, live + (action.forward ? held.forward_peak : held.backward_peak - held.kept));
      live += action.forward ? held.kept : -held.kept;
    }
    // The first rank begins and ends a step; what others do after their last backward may hide behind that.
    bound.step_s = std::max(bound.step_s, (rank == 0 ? ends.front() : busy) + tail + updates);
    const double process = models_.device().process.count();
    bound.memory_bytes = std::max(bound.memory_bytes, resident - (shape.virtual_stages - 1) * process + most);
  }
  return bound;
}

PlanBounds::ShardRanks PlanBounds::shard_ranks(const Plan& plan) {
  const int tensor = plan.number("tensor"), expert = plan.number("expert"), copies = plan.copies();
  const int shards = plan.number("data") * plan.number("context") / copies;
  return {.shards = {0, shards, tensor},
          .experts = {0, shards / expert, tensor * expert},
          .replicas = {0, copies, tensor * shards}};
}

PlanBound PlanBounds::sharded(const Plan& plan) {
  const Model& model = *part_of(plan).model;
  const Range all = whole_range(model);
  const SegmentTimes& alone = times(plan, 0);
  const int parts = plan.number("micro-batches");
  const ShardRanks ranks = shard_ranks(plan);
  const int count = ranks.shards.count;
  const Units units(model);
  const double parameter = bytes_of(model.precision.parameters),
               reduced = bytes_of(model.precision.reduction);
  const double gradient = bytes_of(model.precision.gradients);
  const double computed = parts * (forward_s(plan, alone, all) + backward_s(plan, alone, all));
  PlanBound bound;
  if (plan.text("sharding") == "no_shard") {
    bound.step_s = computed +
                   collective_s(CollectiveKind::kAllReduce, Bytes(reduced * units.elements[0]), ranks.shards) +
                   optimizer_s(plan, all);
    const Activations& held = activations(plan, all);
    bound.memory_bytes = resident_bytes(plan, all, false) + std::max(held.forward_peak, held.backward_peak);
    return bound;
  }
  const bool keeps = plan.text("sharding") == "shard_grad_op";
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
  double units_s = 0.0, experts_s = 0.0, averaged_s = 0.0, waited = 0.0;
  const std::vector<double> after = after_exchanges_s(plan);
  for (std::size_t i = 0; i < units.of_segment.size(); ++i) {
    const auto unit = static_cast<std::size_t>(units.of_segment[i]);
    if (unit == 0) continue;
    const double dense = units.elements[unit], expert = units.experts[unit];
    const double gather = gather_s(dense, ranks.shards), own = gather_s(expert, ranks.experts);
    units_s += times_gathered * gather + scatter_s(dense, ranks.shards);
    experts_s += times_gathered * own + scatter_s(expert, ranks.experts);
    averaged_s += average_s(dense);
    waited += std::max(0.0, std::max(gather, own) - (i > 0 ? after[i - 1] : 0.0));
  }
  const double root = gather_s(units.elements[0], ranks.shards);
  const double last = scatter_s(units.elements[0], ranks.shards) + average_s(units.elements[0]);
  // Forwards wait for every unit that no prefetch gathered before.
  waited *= plan.text("forward-prefetch") == "yes" ? 0 : keeps ? 1 : parts;
  bound.step_s = std::max({root + waited + computed + last, root + units_s + last, experts_s, averaged_s}) +
                 optimizer_s(plan, all) / count;

  const double master = model.precision.master == "none" ? parameter : 0.0;
  const double own = sum_of(units.elements) / count + sum_of(units.experts) / ranks.experts.count;
  bound.memory_bytes = own * (master + std::min(reduced, gradient)) + model.optimizer_bytes(own).count() +
                       models_.problem().samples / plan.number("data") * model.input_bytes().count() +
                       models_.device().process.count();
  std::vector<double> gathered = units.elements;
  for (std::size_t u = 0; u < gathered.size() && ranks.experts.count > 1; ++u) gathered[u] += units.experts[u];
  bound.memory_bytes += sharded_peak(plan, units.of_segment, gathered,
                                     {.keeps = keeps, .parameter = parameter, .gradient = gradient});
  return bound;
}

std::vector<double> PlanBounds::after_exchanges_s(const Plan& plan) {
  const Part part = part_of(plan);
  const TraceEntry& trace = models_.estimate(plan, part.samples);
  std::vector<double> after(part.model->segments.size(), 0.0);
  for (std::size_t i = 0; i < after.size(); ++i) {
    double done = 1.0;
    for (const int exchange : part.model->segments[i].exchanges)
      if (!part.model->exchanges[static_cast<std::size_t>(exchange)].backward)
        done = trace.exchange_fraction[static_cast<std::size_t>(exchange)];
    after[i] = (1.0 - done) * trace.segments[i].forward_s.front();
  }
  return after;
}

double PlanBounds::sharded_peak(const Plan& plan, const std::vector<int>& unit_of,
                                const std::vector<double>& elements, UnitBytes bytes) {
  const Part part = part_of(plan);
  const TrainingConfig config{.batch = part.samples, .recompute = part.recompute};
  LocalStep step(*part.model, config);
  step.forward_all(0);
  step.backward_all(0);
  const Program program = step.take();
  const LocalCosts local(*part.model, models_.estimate(plan, part.samples), part.samples);
  MemoryWalk walk(local.costs());
  double until = 0.0;  // elements of the units that a forward has reached, but the root
  std::vector<double> before(elements.size(), 0.0);
  for (std::size_t u = 1; u < elements.size(); ++u) before[u] = until += elements[u];
  const bool accumulates = plan.number("micro-batches") > 1;
  for (const Op& op : program.ops) {
    const auto& compute = std::get<Compute>(op.action);
    const bool backward = compute.phase == Phase::kBackward || compute.phase == Phase::kRecompute;
    const auto unit = static_cast<std::size_t>(
        compute.segment < 0 ? unit_of.back() : unit_of[static_cast<std::size_t>(compute.segment)]);
    const double kept = unit == 0 ? (compute.segment == 0 ? 0.0 : until) : before[unit];
    const double gathered = elements[0] + (bytes.keeps ? kept : unit == 0 ? 0.0 : elements[unit]);
    const double graded = accumulates ? until + elements[0]
                          : backward  ? elements[0] + (unit == 0 ? 0.0 : elements[unit])
                                      : 0.0;
    walk.run(op, bytes.parameter * gathered + bytes.gradient * graded);
  }
  return walk.peak;
}

}  // namespace stepcast
