#include "sim/plan/memory_bounds.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/ranges.hpp"
#include "sim/strategies/unit_step.hpp"

namespace stepcast {
namespace {

/// Memory of operations that run one after the other, from `live` bytes on.
struct MemoryWalk {
  const PhaseCosts& costs;
  double live = 0.0, peak = 0.0;

  /// Operations that compute alone set the peak: a transfer may run later than in this order.
  void run(const Op& op) {
    change(op, false);
    if (op.stream == Stream::kCompute) peak = std::max(peak, live + costs.workspace_bytes({}, op));
    change(op, true);
  }

 private:
  void change(const Op& op, bool at_end) {
    for (const MemoryChange& one : op.memory)
      if (one.at_end == at_end) live += costs.bytes(one);
  }
};

double input_bytes(const PlanView& view) {
  return 1.0 * view.samples * view.shape.micro_batches * view.model.input_bytes().count();
}

/// The operations of one micro-batch, and the messages at their ends.
struct LocalProgram {
  Program program{};
  double input = 0.0, output = 0.0;  ///< bytes
  bool is_last = false;
  bool frees_output = false;  ///< after it is sent
};

LocalProgram local_program(const PlanView& view, SegmentRange range) {
  // As if all blocks were recomputed where some are: the least memory.
  const TrainingConfig config{.batch = view.samples, .recompute = {.blocks = view.recompute.blocks}};
  const std::vector<int> segments = whole_numbers(range.first, range.second + 1);
  LocalStep step(view.model, config, segments);
  LocalProgram result{.is_last = range.second == whole_range(view.model).second};
  for (const int segment : segments) step.forward(segment, 0);
  if (result.is_last) step.loss(0);
  if (range.first > 0) result.input = step.output_bytes(range.first - 1).count();
  result.output = step.output_bytes(range.second).count();
  result.frees_output = !result.is_last && (step.recomputes(range.second) || view.model.transformer_engine());
  const Phase phase = view.splits_backward() ? Phase::kBackwardInput : Phase::kBackward;
  for (int segment = range.second; segment >= range.first; --segment)
    if (step.has(phase, segment)) step.backward(segment, 0, {}, phase);
  result.program = step.take();
  return result;
}

/// Gradients of shared parameters, no wider than they are reduced.
double reduced_gradients(const SegmentBytes& held, const SegmentBytes::Shared& shared, SegmentRange range) {
  const double reduced = held.dense.reduced.of(range) + held.experts.reduced.of(range);
  return std::min(1.0, held.gradient.of(range) / std::max(1.0, reduced)) * shared.reduced.of(range);
}

/// Whole units differ with the shards in their padding alone: the fewest that divide these, with experts
/// shared as by these.
int fewest_shards(const PlanView& view) {
  const int shards = view.layout.shards;
  int few = 2;
  while (few < shards && (shards % few != 0 || few * view.tensor % (view.expert * view.expert_tensor) != 0 ||
                          (view.expert_shards(few) == 1) != (view.expert_shards(shards) == 1)))
    ++few;
  return few;
}

bool runs_after_forward(const Op& op) {
  const Phase phase = std::get<Compute>(op.action).phase;
  return phase == Phase::kRecompute || is_backward(phase);
}

}  // namespace

MemoryBounds::MemoryBounds(PlanModels& models) : models_(models) {}

double MemoryBounds::peak_bytes(const PlanView& view) {
  return view.layout.fsdp ? sharded_bytes(view) : pipelined_bytes(view);
}

const SegmentBytes& MemoryBounds::segment_bytes(const Model& model) {
  const auto [found, is_new] = segment_bytes_.try_emplace(&model);
  SegmentBytes& all = found->second;
  if (!is_new) return all;
  struct Sums {
    double gathered = 0.0, reduced = 0.0, count = 0.0, muon_count = 0.0;
  };
  const auto add = [&](const Sums& sums, SegmentBytes::Shared& to) {
    to.gathered.add(sums.gathered);
    to.reduced.add(sums.reduced);
    to.states.add(model.optimizer_bytes(sums.count, sums.muon_count).count());
  };
  for (const Segment& segment : model.segments) {
    double size = 0.0, gradient = 0.0, last = 0.0;
    Sums dense, experts;
    double smallest = std::numeric_limits<double>::infinity();
    for (const int tensor : segment.parameters) {
      const Parameter& parameter = model.parameters[tensor];
      Sums& shared = parameter.expert ? experts : dense;
      size += (parameter.size + parameter.copies).count();
      gradient += parameter.gradient.count();
      shared.gathered += parameter.gathered().count();
      shared.reduced += parameter.reduced.count();
      shared.count += static_cast<double>(parameter.numel());
      shared.muon_count += model.muon_elements(parameter);
      last = parameter.expert ? 0.0 : parameter.reduced.count();
      smallest = std::min(smallest, parameter.gathered().count());
    }
    for (const int tensor : segment.frozen.own)
      size += (model.parameters[tensor].size + model.parameters[tensor].copies).count();
    all.size.add(size);
    all.gradient.add(gradient);
    add(dense, all.dense);
    add(experts, all.experts);
    all.last.push_back(last);
    all.smallest.push_back(segment.parameters.empty() ? 0.0 : smallest);
  }
  return all;
}

const std::vector<FsdpUnit>& MemoryBounds::units(const PlanView& view, const Layout& layout) {
  const std::string wrap = view.plan.text("wrap") == "ends" ? "ends" : "block";  // more is gathered at once
  return cached(units_, {&view.model, layout.shards, layout.shards_parameters(), wrap},
                [&] { return fsdp_units(view.model, wrap_of(view.model, wrap), layout); });
}

double MemoryBounds::least_bytes(const PlanView& view) {
  double bound = 0.0;
  for (int rank = 0; rank < view.shape.ranks; ++rank) {
    double bytes = process_bytes();
    for (auto chunk = static_cast<std::size_t>(rank); chunk < view.chunks.size();
         chunk += static_cast<std::size_t>(view.shape.ranks))
      bytes += state_bytes(view, view.chunks[chunk]);
    bound = std::max(bound, bytes);
  }
  return bound;
}

double MemoryBounds::state_bytes(const PlanView& view, SegmentRange range) {
  const SegmentBytes& held = segment_bytes(view.model);
  const int shards = view.layout.sharers();
  double bytes = view.layout.shards_parameters() ? 0.0 : held.size.of(range);
  if (view.model.optimizer.kind != "none")
    bytes +=
        held.dense.states.of(range) / shards + held.experts.states.of(range) / view.expert_shards(shards);
  return bytes;
}

double MemoryBounds::resident_bytes(const PlanView& view, SegmentRange range) {
  const Model& model = view.model;
  const SegmentBytes& held = segment_bytes(model);
  const Layout& layout = view.layout;
  double bytes = state_bytes(view, range);
  const bool in_place = model.transformer_engine();  // no array for reduced gradients
  const auto add_shared = [&](const SegmentBytes::Shared& shared, int shards) {
    if (shards > 1) {
      const double copy = model.precision.master == "none" && !in_place ? shared.gathered.of(range) : 0.0;
      bytes += (copy + (in_place ? 0.0 : reduced_gradients(held, shared, range))) / shards;
    } else if (layout.gather == Layout::Gather::kNever && layout.shards > 1 && !layout.fsdp && !in_place) {
      bytes += shared.reduced.of(range);
    }
  };
  add_shared(held.dense, layout.sharers());
  add_shared(held.experts, view.expert_shards(layout.sharers()));
  const bool stay = layout.keeps_gradients && view.plan.text("gradients") != "freed";
  if (model.optimizer.kind != "none" && stay) bytes += held.gradient.of(range);
  const bool has_ends = range.first == 0 || range.second == whole_range(model).second;
  if (has_ends) bytes += input_bytes(view);
  return bytes;
}

double MemoryBounds::passing_gradients(const PlanView& view, SegmentRange range) {
  double most = 0.0;
  const bool passing = !view.layout.keeps_gradients && !view.layout.shards_parameters();
  for (int segment = range.first; passing && segment <= range.second; ++segment)
    most = std::max(most, segment_bytes(view.model).gradient.of({segment, segment}));
  return most;
}

const MemoryBounds::Activations& MemoryBounds::activations(const PlanView& view, SegmentRange range) {
  return cached(activations_, {&view.model, view.samples, view.recompute, range, view.splits_backward()},
                [&] { return walked(view, range); });
}

MemoryBounds::Activations MemoryBounds::walked(const PlanView& view, SegmentRange range) {
  const LocalProgram local = local_program(view, range);
  const std::vector<Op>& ops = local.program.ops;
  const auto backward = std::ranges::find_if(ops, runs_after_forward);
  MemoryWalk walk{.costs = view.costs, .live = local.input};
  Activations result;
  for (auto op = ops.begin(); op != backward; ++op) walk.run(*op);
  result.forward_peak = walk.peak;
  if (local.frees_output) walk.live -= local.output;
  result.kept = walk.live;
  if (!local.is_last) walk.live += local.output;  // gradient that the next stage sends
  walk.peak = walk.live;
  for (auto op = backward; op != ops.end(); ++op) walk.run(*op);
  result.backward_peak = walk.peak;
  if (view.splits_backward()) result.waiting = walk.live - local.input;  // its gradient is sent
  return result;
}

double MemoryBounds::pipelined_bytes(const PlanView& view) {
  const PipelineShape& shape = view.shape;
  const auto& chunks = view.chunks;
  std::vector<const Activations*> held_by(chunks.size());
  double bound = 0.0;
  for (int rank = 0; rank < shape.ranks; ++rank) {
    double resident = process_bytes(), live = 0.0, most = passing_gradients(view, chunks[rank]);
    // Of a stage in shards: parameters from the first forward on, and gradients from the first backward on.
    std::vector<double> whole(chunks.size()), gradients(chunks.size());
    for (auto chunk = static_cast<std::size_t>(rank); chunk < chunks.size();
         chunk += static_cast<std::size_t>(shape.ranks)) {
      resident += resident_bytes(view, chunks[chunk]);
      if (!view.layout.shards_parameters()) continue;
      const SegmentBytes& held = segment_bytes(view.model);
      for (const SegmentBytes::Shared* shared : {&held.dense, &held.experts}) {
        live += shared->gathered.of(chunks[chunk]);
        whole[chunk] += shared->gathered.of(chunks[chunk]);
        gradients[chunk] += reduced_gradients(held, *shared, chunks[chunk]);
      }
    }
    for (const PipelineAction& action : first_actions(shape, rank)) {
      const Activations*& known = held_by[action.chunk];
      if (known == nullptr) known = &activations(view, chunks[action.chunk]);
      const Activations& held = *known;
      const bool forward = action.phase == Phase::kForward;
      const bool last = action.micro_batch + 1 == shape.micro_batches;
      if (!forward && last) live -= std::exchange(whole[action.chunk], 0.0);  // freed one after the other
      if (action.phase != Phase::kBackwardWeight)
        most = std::max(most, live + (forward ? held.forward_peak : held.backward_peak - held.kept));
      live += forward ? held.kept : -held.kept;
      if (action.phase == Phase::kBackwardInput) live += held.waiting;
      if (action.phase == Phase::kBackwardWeight) live += held.kept - held.waiting;
      if (!forward && !last && action.phase != Phase::kBackwardInput) {
        const double taken = std::exchange(gradients[action.chunk], 0.0);
        whole[action.chunk] += taken, live += taken;
      }
    }
    bound = std::max(bound, resident + most);
  }
  return bound;
}

const std::vector<PipelineAction>& MemoryBounds::first_actions(const PipelineShape& shape, int rank) {
  const auto [found, is_new] =
      actions_.try_emplace({shape.schedule, shape.ranks, shape.micro_batches, shape.virtual_stages, rank});
  if (!is_new) return found->second;
  std::vector<PipelineAction> all = pipeline_order(shape, rank, false);
  const auto first = std::ranges::find_if(all, [](const auto& one) { return one.phase != Phase::kForward; });
  const std::ptrdiff_t round = 2L * shape.ranks * shape.virtual_stages;
  all.erase(first + std::min(round, all.end() - first), all.end());
  all.shrink_to_fit();
  return found->second = std::move(all);
}

double MemoryBounds::sharded_bytes(const PlanView& view) {
  const std::vector<FsdpUnit>& all = units(view, view.layout);
  if (!all.front().sharded) {
    const SegmentRange range = view.chunks.front();
    const Activations& held = activations(view, range);
    return process_bytes() + resident_bytes(view, range) + std::max(held.forward_peak, held.backward_peak);
  }
  double bytes = process_bytes() + input_bytes(view);
  const bool freed = view.plan.text("gradients") == "freed";  // while the forward fills the memory
  for (const FsdpUnit& unit : all)
    for (const MemoryChange& held : resident(view.model, view.layout, unit))
      if (!freed || held.category != MemoryCategory::kGradients) bytes += held.size.count();
  const bool accumulates = view.shape.micro_batches > 1 && !view.layout.reduces_each;
  const int micro_batches = accumulates ? 2 : 1;  // the last one, behind gradients of another
  Layout layout = view.layout;
  layout.shards = fewest_shards(view);
  const std::vector<FsdpUnit>& least_padded = units(view, layout);
  return bytes + cached(sharded_peaks_,
                        {&view.model, view.samples, view.recompute, least_padded.data(), layout.gather,
                         micro_batches},
                        [&] { return sharded_peak(view, layout, least_padded, micro_batches); });
}

double MemoryBounds::sharded_peak(const PlanView& view, const Layout& layout,
                                  const std::vector<FsdpUnit>& units, int micro_batches) {
  const TrainingConfig config{.batch = micro_batches * view.samples,
                              .micro_batches = micro_batches,
                              .recompute = {.blocks = view.recompute.blocks}};
  LocalStep step(view.model, config);
  Schedule schedule;
  UnitStep(step, schedule, layout, units).train();
  MemoryWalk walk{.costs = view.costs};
  for (const Op& op : step.take().ops) walk.run(op);
  return walk.peak;
}

}  // namespace stepcast
