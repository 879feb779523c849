#include "sim/strategies/zero_reduction.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "core/error.hpp"
#include "sim/strategies/fsdp_units.hpp"
#include "sim/strategies/whole_parameters.hpp"

namespace stepcast {
namespace {

/// Parameters in one flat array.
struct UnitPart {
  std::string name;
  std::vector<int> tensors;
};

std::vector<UnitPart> parts_in_buckets(const LocalStep& step, const BucketLimits& limits,
                                       const std::vector<int>& tied, std::size_t first) {
  std::vector<UnitPart> parts;
  for (Bucket& bucket :
       assign_buckets(step.model(), step.segments(), limits.first_cap, limits.cap, step.copies(), tied))
    parts.push_back({"bucket" + std::to_string(first + parts.size()), std::move(bucket.tensors)});
  return parts;
}

/// One part per block, per experts of a block, per run of adjacent segments that are no blocks, and per tied
/// tensor; in a model without repeated blocks one per segment.
std::vector<UnitPart> parts_in_units(const LocalStep& step, const std::vector<int>& tied) {
  const std::vector<Segment>& segments = step.model().segments;
  const bool repeats = repeats_blocks(step.model());
  std::vector<UnitPart> parts;
  int latest = -2;  // last segment of a part that the next segment may join
  for (const int index : step.segments()) {
    const bool joins = repeats && !segments[index].repeated;
    if (!joins || latest + 1 != index) parts.push_back({segments[index].name, {}});
    latest = joins ? index : -2;
    UnitPart experts{segments[index].name + kExpertUnits, {}},
        frozen_experts{segments[index].name + std::string(kFrozenUnits) + kExpertUnits, {}},
        frozen{segments[index].name + kFrozenUnits, {}};
    std::vector<int> tensors = segments[index].parameters;
    const std::vector<int> unchanged = step.frozen(index);
    tensors.insert(tensors.end(), unchanged.begin(), unchanged.end());
    for (const int copy : step.copies(index)) tensors.push_back(copy);
    for (const int tensor : tensors) {
      const Parameter& one = step.model().parameters[tensor];
      if (std::ranges::find(tied, tensor) != tied.end())
        parts.insert(parts.end() - 1, UnitPart{one.name, {tensor}});
      else
        (one.expert   ? (one.frozen ? frozen_experts : experts)
         : one.frozen ? frozen
                      : parts.back())
            .tensors.push_back(tensor);
    }
    for (UnitPart* part : {&experts, &frozen_experts, &frozen})
      if (!part->tensors.empty()) parts.insert(parts.end() - 1, std::move(*part));
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
    options.refuse({"gather-parameters"}, "without --zero 1 or 2");
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

ZeroReduction::ZeroReduction(LocalStep& step, Schedule& schedule, const BucketLimits& limits, int stage,
                             const Sharing& sharing, const std::vector<int>& tied)
    : step_(step),
      units_(step, schedule),
      stage_(stage),
      sharing_(sharing),
      first_(schedule.units.size()),
      bucket_of_(step.model().parameters.size()) {
  const Model& model = step.model();
  step.forget_resident();
  if (stage < 3) step.hold(MemoryCategory::kParameters, step.frozen_bytes());
  for (const UnitPart& one :
       stage == 3 ? parts_in_units(step, tied) : parts_in_buckets(step, limits, tied, first_)) {
    for (const int tensor : one.tensors) bucket_of_[tensor] = states_.size();
    states_.push_back({.pending = one.tensors.size()});
    const Parameter& first = model.parameters[one.tensors.front()];
    schedule.units.push_back(
        make_unit(model, one.name, one.tensors, model.replicas(first, sharing.shards), sharing.group));
    if (stage < 3 && schedule.units.back().shards > 1)
      schedule.units.back().updated = model.shard_update(false);
    const FsdpUnit& own = schedule.units.back();
    if (stage < 3) {
      Bytes held = own.alone() ? Bytes(0) : own.size();
      for (const int tensor : one.tensors)
        held += model.parameters[tensor].not_gathered + model.parameters[tensor].copies;
      step.hold(MemoryCategory::kParameters, held);
    }
    if (stage == 1 && !own.alone()) step.hold(MemoryCategory::kGradients, own.gradients());
    // Megatron reduces in the array of the whole gradients.
    const bool in_place =
        model.transformer_engine() && stage == 1 && !own.alone() && own.gradient == own.reduced;
    for (const MemoryChange& held : resident_shard(model, own, step.offload(), stage == 3))
      if (!in_place || held.category != MemoryCategory::kGradients) step.hold(held.category, held.size);
  }
}

void ZeroReduction::zero_grad() {
  for (std::size_t bucket = 0; stage_ == 1 && bucket < states_.size(); ++bucket) take_gradients(bucket);
}

std::vector<std::size_t> ZeroReduction::buckets_of(int segment) const {
  std::vector<std::size_t> buckets;
  for (const std::vector<int>* used :
       {&step_.model().segments[segment].parameters, &step_.model().segments[segment].tied})
    for (const int tensor : *used) buckets.push_back(bucket_of_[tensor]);
  for (const int tensor : frozen_of(segment)) buckets.push_back(bucket_of_[tensor]);
  return buckets;
}

/// Frozen parameters in units: with stage 3.
std::vector<int> ZeroReduction::frozen_of(int segment) const {
  return stage_ == 3 ? step_.frozen(segment) : std::vector<int>{};
}

int ZeroReduction::gather(std::size_t bucket, std::vector<int> after) {
  if (unit(bucket).alone()) return -1;
  return units_.gather(first_ + bucket, stage_ == 3, std::move(after));
}

void ZeroReduction::gather() {
  for (std::size_t i = 0; gathers_before() && i < states_.size(); ++i) {
    const std::size_t bucket = stage_ == 3 ? i : states_.size() - 1 - i;  // buckets begin at the last segment
    states_[bucket].gathered = gather(bucket, {});
  }
}

int ZeroReduction::forward(int segment, int micro_batch, std::vector<int> after, bool keeps_nothing) {
  for (const std::size_t bucket : buckets_of(segment))
    if (const int call = std::exchange(states_[bucket].gathered, -1); call >= 0) after.push_back(call);
  return step_.forward(segment, micro_batch, std::move(after), keeps_nothing);
}

void ZeroReduction::take_gradients(std::size_t bucket) {
  if (!unit(bucket).trains() || std::exchange(states_[bucket].gradients, true)) return;
  units_.zero_gradients(first_ + bucket, stage_ > 1 && !unit(bucket).alone());
}

int ZeroReduction::backward(int segment, int micro_batch, bool last, std::vector<int> after, Phase phase) {
  const std::vector<int>& tensors = step_.model().segments[segment].parameters;
  for (const std::size_t bucket : buckets_of(segment)) take_gradients(bucket);
  const int backward = step_.backward(segment, micro_batch, std::move(after), phase);
  if (!last && !sharing_.reduces_each) return backward;
  std::vector<std::size_t> full;
  const std::vector<int> copies = step_.copies(segment), frozen = frozen_of(segment);
  for (const std::vector<int>* ready : {&tensors, &copies, &frozen})
    for (const int tensor : *ready)
      if (--states_[bucket_of_[tensor]].pending == 0) full.push_back(bucket_of_[tensor]);
  std::ranges::sort(full);
  for (const std::size_t bucket : full) reduce(bucket, sharing_.reduces_each && micro_batch > 0, last);
  return backward;
}

void ZeroReduction::reduce(std::size_t bucket, bool adds, bool last) {
  const std::size_t index = first_ + bucket;
  const bool alone = unit(bucket).alone();
  if (!last) states_[bucket].pending = unit(bucket).tensors.size();
  if (stage_ == 3 && !alone) units_.free_parameters(index);
  if (!unit(bucket).trains() || (alone && !last)) return;
  units_.scale(index, 1.0 / (sharing_.shards * sharing_.replicas));
  if (stage_ > 1) finish_reduction();
  std::vector<int> after = step_.latest(Stream::kCompute);
  if (!alone) after = {units_.reduce(index, after, adds)};
  if (sharing_.replicas > 1)
    after = {units_.reduce_shard(index, sharing_.replica_group, after,
                                 "all_reduce/" + unit(bucket).name + "/replicas")};
  if (!alone)
    reducing_.push_back({bucket, after.front(), adds});
  else if (sharing_.replicas > 1)
    averaged_.push_back(after.front());
}

void ZeroReduction::finish_reduction() {
  for (const Reduction& one : std::exchange(reducing_, {})) {
    units_.free_gradients(first_ + one.bucket, one.call);
    states_[one.bucket].gradients = false;
    if (one.adds) units_.add_incoming(first_ + one.bucket, 1.0);
  }
}

std::vector<int> ZeroReduction::end_reduction() {
  std::vector<int> reduced = std::exchange(averaged_, {});
  for (const Reduction& one : reducing_) reduced.push_back(one.call);
  if (stage_ > 1) finish_reduction();
  return reduced;
}

void ZeroReduction::update(std::vector<int> after) {
  for (std::size_t bucket = 0; bucket < states_.size(); ++bucket) {
    if (stage_ == 3 && states_[bucket].pending > 0 && !unit(bucket).alone())
      units_.free_parameters(first_ + bucket);  // no backward used it
    if (!unit(bucket).trains()) continue;
    const std::vector<int> updated = units_.update(first_ + bucket, std::exchange(after, {}));
    if (!gathers_before()) gather(bucket, updated);
  }
}

}  // namespace stepcast
