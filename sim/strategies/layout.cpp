#include "sim/strategies/layout.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "core/error.hpp"
#include "core/ranges.hpp"
#include "sim/strategies/local_step.hpp"
#include "sim/strategies/whole_parameters.hpp"

namespace stepcast {
namespace {

/// Parameters in one flat array.
struct UnitPart {
  std::string name;
  std::vector<int> tensors{};
};

/// Parts of the trained parameters, the frozen ones, experts and frozen experts of the same segments.
using Kinds = std::array<UnitPart, 4>;
Kinds kinds_of(const std::string& name) {
  const std::string frozen = name + kFrozenUnits;
  return {{{name}, {frozen}, {name + kExpertUnits}, {frozen + kExpertUnits}}};
}
std::size_t kind_of(const Parameter& parameter) {
  return (parameter.expert ? 2 : 0) + (parameter.frozen ? 1 : 0);
}

/// Returns a sharded unit of these parameters. Its flat array is padded to a multiple of the ranks.
/// \pre there is a parameter, and all are frozen or none
FsdpUnit make_unit(const Model& model, const UnitPart& part, const Layout& layout) {
  const Parameter& first = model.parameters[part.tensors.front()];
  const int shards = model.replicas(first, layout.shards);
  FsdpUnit unit;
  unit.name = part.name;
  unit.tensors = part.tensors;
  unit.shards = shards;
  unit.group = layout.group;
  unit.sharded = layout.gather != Layout::Gather::kNever;
  unit.gradient = first.frozen ? 0.0 : bytes_of(model.precision.gradients);
  unit.reduced = first.frozen ? 0.0 : bytes_of(model.precision.reduction);
  std::int64_t all = 0;  // trained parameters of its segments
  Bytes gathered;
  for (const int tensor : part.tensors) {
    const Parameter& parameter = model.parameters[tensor];
    unit.elements += parameter.numel();
    gathered += parameter.gathered();
    if (contains(unit.segments, parameter.segment)) continue;
    unit.segments.push_back(parameter.segment);
    for (const int other : model.segments[parameter.segment].parameters)
      all += model.parameters[other].numel();
  }
  if (shards > 1) unit.updated = model.shard_update(layout.shards_parameters());
  unit.part = first.frozen ? 0.0 : static_cast<double>(unit.elements) / static_cast<double>(all);
  unit.parameter = gathered.count() / static_cast<double>(unit.elements);
  unit.elements = (unit.elements + shards - 1) / shards * shards;
  return unit;
}

std::vector<UnitPart> parts_in_buckets(const LocalStep& step, const BucketLimits& limits,
                                       const std::vector<int>& tied, std::size_t first) {
  std::vector<UnitPart> parts;
  for (Bucket& bucket :
       assign_buckets(step.model(), step.segments(), limits.first_cap, limits.cap, step.copies(), tied))
    parts.push_back({"bucket" + std::to_string(first + parts.size()), std::move(bucket.tensors)});
  return parts;
}

std::vector<UnitPart> parts_in_blocks(const LocalStep& step, const std::vector<int>& tied) {
  const std::vector<Segment>& segments = step.model().segments;
  const bool repeats = repeats_blocks(step.model());
  std::vector<UnitPart> parts;
  int latest = -2;  // last segment of a part that the next segment may join
  for (const int index : step.segments()) {
    const bool joins = repeats && !segments[index].repeated;
    if (!joins || latest + 1 != index) parts.push_back({segments[index].name, {}});
    latest = joins ? index : -2;
    Kinds kinds = kinds_of(segments[index].name);
    std::vector<int> tensors = segments[index].parameters;
    for (const std::vector<int>& others : {step.frozen(index), step.copies(index)}) append(tensors, others);
    for (const int tensor : tensors) {
      const Parameter& one = step.model().parameters[tensor];
      if (contains(tied, tensor))
        parts.insert(parts.end() - 1, UnitPart{one.name, {tensor}});
      else
        (kind_of(one) == 0 ? parts.back() : kinds[kind_of(one)]).tensors.push_back(tensor);
    }
    for (const std::size_t kind : {2, 3, 1})
      if (!kinds[kind].tensors.empty()) parts.insert(parts.end() - 1, std::move(kinds[kind]));
  }
  std::erase_if(parts, [](const UnitPart& part) { return part.tensors.empty(); });
  return parts;
}

}  // namespace

void require_sharing(const Model& model, const std::string& given, int replicas, const std::string& instead) {
  if (model.optimizer.kind == "none")
    throw UsageError("{} has no effect with '{}', which has no optimizer; {}", given, model.specification,
                     instead);
  if (const int ranks = replicas * model.parallel.tensor; ranks % model.parallel.expert_ranks() != 0)
    throw UsageError(
        "{}: expert x expert_tensor of {} must divide the {} ranks that share one copy (shards x tensor)",
        given, model.parallel.expert_ranks(), ranks);
}

int zero_stage(StrategyOptions& options, const Model& model, int replicas) {
  const std::string stage = options.text("zero");
  if (stage == "0" || stage == kWholeParameters)
    options.refuse({"gather-parameters", "reduce-by"}, "without --zero 1 or 2");
  if (stage == "0") {
    options.drop({"zero"});
    return 0;
  }
  if (replicas == 1)
    throw UsageError("--zero {} has no effect without replicas; take 0, or data from 2 on in --mesh", stage);
  require_sharing(model, "--zero " + stage, replicas, "take 0");
  if (stage == kWholeParameters) return kWholeStage;
  if (options.text("compress") != "none")
    throw UsageError(
        "--compress {} is not supported with --zero {}; take --precision for the dtype in which gradients "
        "are reduced",
        options.text("compress"), stage);
  return std::stoi(stage);
}

Layout zero_layout(int stage) {
  return {.gather = stage == 3 ? Layout::Gather::kStep : Layout::Gather::kAfterUpdate,
          .keeps_gradients = stage == 1};
}

Layout fsdp_layout(const std::string& sharding, const std::string& accumulate) {
  if (sharding == "no_shard") return {.fsdp = true};
  return {.gather = sharding == "full_shard" ? Layout::Gather::kUse : Layout::Gather::kBackward,
          .keeps_gradients = false,
          .reduces_each = !accumulate.empty() && accumulate != "last",
          .averages_each = accumulate != kShardThenReplicas,
          .fsdp = true};
}

bool ties_parameters(const Model& model) {
  return std::ranges::any_of(model.segments, [](const Segment& segment) {
    return !segment.tied.empty() || !segment.frozen.tied.empty();
  });
}

std::string wrap_of(const Model& model, const std::string& wrap) {
  if (wrap != "root" && !repeats_blocks(model)) return "layer";
  return wrap == "ends" && ties_parameters(model) ? "block" : wrap;
}

std::vector<FsdpUnit> fsdp_units(const Model& model, const std::string& wrap, const Layout& layout) {
  std::vector<std::pair<std::string, std::vector<int>>> wrapped{{"root", {}}};  // names and segments
  bool before = wrap == "ends";                                                 // true before the first block
  for (int i = 0; i < static_cast<int>(model.segments.size()); ++i) {
    const Segment& segment = model.segments[i];
    before = before && !segment.repeated;
    const bool own = wrap == "layer" || before || (wrap != "root" && segment.repeated);
    if (own && !(segment.parameters.empty() && segment.frozen.own.empty()))
      wrapped.push_back({segment.name, {i}});
    else
      wrapped.front().second.push_back(i);
  }
  if (wrap == "ends") std::ranges::rotate(wrapped, std::next(wrapped.begin()));
  std::vector<FsdpUnit> units;
  for (const auto& [name, segments] : wrapped) {
    Kinds kinds = kinds_of(name);
    for (int i = 0; i < static_cast<int>(model.parameters.size()); ++i)
      if (const Parameter& one = model.parameters[i]; contains(segments, one.segment))
        kinds[kind_of(one)].tensors.push_back(i);
    if (kinds[0].tensors.empty()) kinds[1].name = name;
    for (const UnitPart& part : kinds) {
      if (part.tensors.empty()) continue;
      units.push_back(make_unit(model, part, layout));
      units.back().segments = segments;
    }
  }
  return units;
}

std::vector<FsdpUnit> zero_units(const LocalStep& step, const Layout& layout, const BucketLimits& limits,
                                 const std::vector<int>& tied, std::size_t first) {
  return transformed(
      layout.shards_parameters() ? parts_in_blocks(step, tied) : parts_in_buckets(step, limits, tied, first),
      [&](const UnitPart& part) { return make_unit(step.model(), part, layout); });
}

bool Layout::sends_gradients(const Model& model, const Offload& offload) const {
  const bool all_on_host = offload.parameters || (offload.optimizer == 1.0 && !model.transformer_engine());
  return all_on_host && averages_each && !adds_ties && !keeps_gradients && (fsdp || gather != Gather::kStep);
}

std::vector<MemoryChange> resident(const Model& model, const Layout& layout, const FsdpUnit& unit,
                                   const Offload& offload) {
  if (offload.parameters && !unit.alone()) return {};
  std::vector<MemoryChange> held;
  const auto hold = [&](MemoryCategory category, Bytes size) {
    held.push_back({.category = category, .size = size});
  };
  const double own = static_cast<double>(unit.elements) / unit.shards;
  const bool engine = model.transformer_engine(), gathers = layout.shards_parameters();
  if (!gathers) {
    Bytes whole = unit.alone() ? Bytes(0) : unit.size();
    for (const int tensor : unit.tensors)
      whole += model.parameters[tensor].not_gathered + model.parameters[tensor].copies;
    hold(MemoryCategory::kParameters, whole);
  }
  // In mixed precision the shard is the master copy; an all-gather casts it to the precision of compute.
  // Megatron FSDP keeps both. Of a master copy on the host the device keeps parameters to gather. Megatron
  // updates whole fp32 parameters in place.
  const double part = unit.alone() || !unit.trains()     ? 1.0
                      : model.precision.master == "none" ? (engine && !gathers ? 0.0 : 1.0)
                      : gathers                          ? (engine ? 1.0 : offload.optimizer)
                                                         : 0.0;
  hold(MemoryCategory::kParameters, Bytes(part * unit.parameter * own));
  if (!unit.trains()) return held;
  if (layout.keeps_gradients && !unit.alone()) hold(MemoryCategory::kGradients, unit.gradients());
  // Megatron reduces in the array of the whole gradients.
  const bool in_place = engine && layout.keeps_gradients && unit.gradient == unit.reduced;
  if (unit.alone() || !(in_place || layout.sends_gradients(model, offload)))
    hold(MemoryCategory::kGradients, unit.alone() ? unit.gradients() : unit.gradient_shard());
  hold(MemoryCategory::kOptimizerState, (1.0 - offload.optimizer) * model.optimizer_bytes(own));
  return held;
}

}  // namespace stepcast
