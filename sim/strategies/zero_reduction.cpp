#include "sim/strategies/zero_reduction.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "core/error.hpp"

namespace stepcast {
namespace {

/// A bucket as one flat array in shards.
FsdpUnit make_unit(const Model& model, const Bucket& bucket, const std::string& name, int group, int ranks) {
  FsdpUnit unit;
  unit.name = name;
  unit.tensors = bucket.tensors;
  unit.shards = ranks;
  unit.group = group;
  unit.sharded = true;
  unit.parameter = bytes_of(model.precision.parameters);
  unit.gradient = bytes_of(model.precision.gradients);
  unit.reduced = bytes_of(model.precision.reduction);
  std::int64_t all = 0;  // parameters of its segments
  for (const int tensor : bucket.tensors) {
    const Parameter& parameter = model.parameters[tensor];
    unit.elements += parameter.numel();
    if (std::find(unit.segments.begin(), unit.segments.end(), parameter.segment) != unit.segments.end())
      continue;
    unit.segments.push_back(parameter.segment);
    for (const int other : model.segments[parameter.segment].parameters)
      all += model.parameters[other].numel();
  }
  unit.part = static_cast<double>(unit.elements) / static_cast<double>(all);
  unit.elements = (unit.elements + ranks - 1) / ranks * ranks;
  return unit;
}

}  // namespace

StrategyOption zero_option() {
  return StrategyOption::choice(
      "zero", {"0", "1", "2"},
      "what replicas share: nothing, the optimizer (ZeRO 1), or gradients too (ZeRO 2)");
}

int zero_stage(StrategyOptions& options, const Model& model, int replicas) {
  const std::string stage = options.text("zero");
  if (stage == "0") {
    options.drop({"zero"});
    return 0;
  }
  if (replicas == 1)
    throw UsageError("--zero " + stage +
                     " means nothing where no replicas share; take 0, or a --world-size from 2 on");
  if (model.optimizer.kind == "none")
    throw UsageError("--zero " + stage + " means nothing to '" + model.specification +
                     "', which has no optimizer; take 0");
  if (options.text("compress") != "none")
    throw UsageError("--compress " + options.text("compress") + " is not supported with --zero " + stage +
                     "; take --precision for the dtype in which gradients are reduced");
  if (model.expert > 1)
    throw UsageError("--zero " + stage + " is not supported where ranks share experts; leave expert out");
  return std::stoi(stage);
}

ZeroReduction::ZeroReduction(LocalStep& step, Schedule& schedule, const BucketLimits& limits, int stage,
                             int group, int ranks, const std::vector<int>& tied)
    : step_(step),
      schedule_(schedule),
      stage_(stage),
      ranks_(ranks),
      first_(schedule.units.size()),
      bucket_of_(step.model().parameters.size()) {
  const Model& model = step.model();
  step.forget_resident();
  for (const Buffer& buffer : model.buffers)
    if (std::find(step.segments().begin(), step.segments().end(), buffer.segment) != step.segments().end())
      step.hold(MemoryCategory::kParameters, buffer.size);
  for (const Bucket& bucket :
       assign_buckets(model, step.segments(), limits.first_cap, limits.cap, step.copies(), tied)) {
    for (const int tensor : bucket.tensors) bucket_of_[tensor] = states_.size();
    states_.push_back({bucket.tensors.size()});
    schedule.units.push_back(
        make_unit(model, bucket, "bucket" + std::to_string(schedule.units.size()), group, ranks));
    const FsdpUnit& own = schedule.units.back();
    const double part = static_cast<double>(own.elements) / ranks;
    step.hold(MemoryCategory::kParameters, own.size());
    if (model.precision.master == "none") step.hold(MemoryCategory::kParameters, Bytes(own.parameter * part));
    if (stage == 1) step.hold(MemoryCategory::kGradients, own.gradients());
    step.hold(MemoryCategory::kGradients, own.gradient_shard());
    step.hold(MemoryCategory::kOptimizerState, model.optimizer_bytes(part));
  }
}

const FsdpUnit& ZeroReduction::unit(std::size_t bucket) const { return schedule_.units[first_ + bucket]; }

void ZeroReduction::zero_grad() {
  for (std::size_t bucket = 0; stage_ == 1 && bucket < states_.size(); ++bucket) take_gradients(bucket);
}

void ZeroReduction::take_gradients(std::size_t bucket) {
  if (std::exchange(states_[bucket].gradients, true)) return;
  Op op{.name = "zero_grad/" + unit(bucket).name,
        .action =
            UnitMemory{.unit = static_cast<int>(first_ + bucket), .what = UnitMemory::What::kZeroGradients}};
  if (stage_ == 2) op.memory = {{.category = MemoryCategory::kGradients, .size = unit(bucket).gradients()}};
  step_.add(std::move(op));
}

int ZeroReduction::backward(int segment, int micro_batch, bool reduces, std::vector<int> after, Phase phase) {
  const std::vector<int>& tensors = step_.model().segments[segment].parameters;
  for (const int tensor : tensors) take_gradients(bucket_of_[tensor]);
  for (const int tensor : step_.model().segments[segment].tied) take_gradients(bucket_of_[tensor]);
  const int backward = step_.backward(segment, micro_batch, std::move(after), phase);
  if (!reduces) return backward;
  std::vector<std::size_t> full;
  const std::vector<int> copies = step_.copies(segment);
  for (const std::vector<int>* ready : {&tensors, &copies})
    for (const int tensor : *ready)
      if (--states_[bucket_of_[tensor]].pending == 0) full.push_back(bucket_of_[tensor]);
  std::sort(full.begin(), full.end());
  for (const std::size_t bucket : full) reduce(bucket);
  return backward;
}

void ZeroReduction::reduce(std::size_t bucket) {
  const auto index = static_cast<int>(first_ + bucket);
  step_.add({.name = "divide/" + unit(bucket).name,
             .action = ScaleUnit{.unit = index, .scale = 1.0 / ranks_, .shard = false},
             .memory_traffic = 2.0 * unit(bucket).gradients()});
  if (stage_ == 2) finish_reduction();
  reducing_.emplace_back(bucket, step_.add_collective("reduce_scatter/" + unit(bucket).name,
                                                      {.kind = CollectiveKind::kReduceScatter,
                                                       .message = unit(bucket).message(),
                                                       .group = unit(bucket).group,
                                                       .payload = UnitGradients{index}},
                                                      step_.latest_compute()));
}

/// Waits for what is being reduced, and gives up the whole gradients.
void ZeroReduction::finish_reduction() {
  for (const auto& [bucket, call] : std::exchange(reducing_, {}))
    step_.add(
        {.name = "free_grad/" + unit(bucket).name,
         .action =
             UnitMemory{.unit = static_cast<int>(first_ + bucket), .what = UnitMemory::What::kFreeGradients},
         .after = {call},
         .memory = {{.category = MemoryCategory::kGradients, .size = -1.0 * unit(bucket).gradients()}}});
}

std::vector<int> ZeroReduction::end_reduction() {
  std::vector<int> reduced;
  for (const auto& [bucket, call] : reducing_) reduced.push_back(call);
  if (stage_ == 2) finish_reduction();
  return reduced;
}

void ZeroReduction::update(std::vector<int> after) {
  for (std::size_t bucket = 0; bucket < states_.size(); ++bucket) {
    const auto index = static_cast<int>(first_ + bucket);
    const int updated = step_.add({.name = "optimizer/" + unit(bucket).name,
                                   .action = UpdateUnit{index},
                                   .after = std::exchange(after, {})});
    step_.add_collective("all_gather/" + unit(bucket).name,
                         {.kind = CollectiveKind::kAllGather,
                          .message = unit(bucket).size(),
                          .group = unit(bucket).group,
                          .payload = UnitParameters{index}},
                         {updated});
  }
}

}  // namespace stepcast
