#include "sim/strategies/fsdp_units.hpp"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <utility>

#include "sim/strategies/local_step.hpp"

namespace stepcast {

FsdpUnit make_unit(const Model& model, const std::string& name, const std::vector<int>& tensors, int ranks,
                   int group) {
  FsdpUnit unit;
  unit.name = name;
  unit.tensors = tensors;
  unit.shards = ranks;
  unit.group = group;
  unit.sharded = true;
  const bool frozen = model.parameters[tensors.front()].frozen;
  unit.gradient = frozen ? 0.0 : bytes_of(model.precision.gradients);
  unit.reduced = frozen ? 0.0 : bytes_of(model.precision.reduction);
  std::int64_t all = 0;  // trained parameters of its segments
  Bytes gathered;
  for (const int tensor : tensors) {
    const Parameter& parameter = model.parameters[tensor];
    unit.elements += parameter.numel();
    gathered += parameter.gathered();
    if (std::ranges::find(unit.segments, parameter.segment) != unit.segments.end()) continue;
    unit.segments.push_back(parameter.segment);
    for (const int other : model.segments[parameter.segment].parameters)
      all += model.parameters[other].numel();
  }
  if (ranks > 1) unit.updated = model.shard_update(true);
  unit.part = frozen ? 0.0 : static_cast<double>(unit.elements) / static_cast<double>(all);
  unit.parameter = gathered.count() / static_cast<double>(unit.elements);
  unit.elements = (unit.elements + ranks - 1) / ranks * ranks;
  return unit;
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

std::vector<FsdpUnit> make_fsdp_units(const Model& model, const std::string& wrap, int ranks, int group,
                                      bool sharded) {
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
    std::vector<int> dense, frozen, experts, frozen_experts;
    for (int i = 0; i < static_cast<int>(model.parameters.size()); ++i)
      if (const Parameter& one = model.parameters[i];
          std::ranges::find(segments, one.segment) != segments.end())
        (one.expert ? (one.frozen ? frozen_experts : experts) : one.frozen ? frozen : dense).push_back(i);
    const auto add = [&](const std::string& unit, const std::vector<int>& tensors, int shards) {
      if (tensors.empty()) return;
      units.push_back(make_unit(model, unit, tensors, shards, group));
      units.back().segments = segments;
      units.back().sharded = sharded;
    };
    add(name, dense, ranks);
    add(dense.empty() ? name : name + kFrozenUnits, frozen, ranks);
    const int same_experts = ranks * model.parallel.tensor / model.parallel.expert_ranks();
    add(name + kExpertUnits, experts, same_experts);
    add(name + kFrozenUnits + kExpertUnits, frozen_experts, same_experts);
  }
  return units;
}

std::vector<MemoryChange> resident_shard(const Model& model, const FsdpUnit& unit, const Offload& offload,
                                         bool gathers) {
  if (offload.parameters && !unit.alone()) return {};
  const double own = static_cast<double>(unit.elements) / unit.shards;
  std::vector<MemoryChange> held;
  // In mixed precision the shard is the master copy; an all-gather casts it to the precision of compute.
  // Megatron FSDP keeps both. Of a master copy on the host the device keeps parameters to gather. Megatron
  // updates whole fp32 parameters in place.
  const bool engine = model.transformer_engine();
  const double part = unit.alone() || !unit.trains()     ? 1.0
                      : model.precision.master == "none" ? (engine && !gathers ? 0.0 : 1.0)
                      : gathers                          ? (engine ? 1.0 : offload.optimizer)
                                                         : 0.0;
  if (part > 0.0)
    held.push_back({.category = MemoryCategory::kParameters, .size = Bytes(part * unit.parameter * own)});
  if (!unit.trains()) return held;
  held.push_back({.category = MemoryCategory::kGradients,
                  .size = unit.alone() ? unit.gradients() : unit.gradient_shard()});
  held.push_back({.category = MemoryCategory::kOptimizerState,
                  .size = (1.0 - offload.optimizer) * model.optimizer_bytes(own)});
  return held;
}

}  // namespace stepcast
