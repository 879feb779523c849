#include "sim/strategies/unit_step.hpp"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <ranges>
#include <string>
#include <utility>

namespace stepcast {

UnitStep::UnitStep(LocalStep& step, Schedule& schedule, const Layout& layout, std::vector<FsdpUnit> units)
    : step_(step),
      layout_(layout),
      units_(step, schedule),
      first_(schedule.units.size()),
      sends_(layout.sends_gradients(step.model(), step.offload())) {
  std::ranges::move(units, std::back_inserter(schedule.units));
  states_.resize(schedule.units.size());
  used_.resize(step.model().segments.size());
  find_users();
  if (layout.gather == Layout::Gather::kNever) return;
  step.forget_resident();
  if (!layout.shards_parameters()) step.hold(MemoryCategory::kParameters, step.frozen_bytes());
  for (std::size_t i = first_; i < states_.size(); ++i)
    for (const MemoryChange& held : resident(step.model(), layout, unit(i), step.offload()))
      step.hold(held.category, held.size);
}

void UnitStep::find_users() {
  const auto add = [&](int segment, std::size_t index) {
    std::vector<std::size_t>& used = used_[segment];
    if (std::ranges::find(used, index) != used.end()) return;
    used.push_back(index);
    if (step_.has(Phase::kBackward, segment)) ++states_[index].users;
  };
  for (std::size_t i = first_; layout_.fsdp && i < states_.size(); i += states_[i].members) {
    while (i + states_[i].members < states_.size() &&
           unit(i + states_[i].members).segments == unit(i).segments)
      ++states_[i].members;
    for (const int segment : unit(i).segments) add(segment, i);
  }
  if (layout_.fsdp) return;
  for (const int index : step_.segments()) {
    const Segment& segment = step_.model().segments[index];
    for (const std::vector<int>& tensors :
         {segment.parameters, segment.tied,
          layout_.shards_parameters() ? step_.frozen(index) : std::vector<int>()})
      for (const int tensor : tensors) add(index, static_cast<std::size_t>(unit_of(tensor)));
  }
}

int UnitStep::unit_of(int tensor) const {
  std::size_t i = first_;
  while (std::ranges::find(unit(i).tensors, tensor) == unit(i).tensors.end()) ++i;
  return static_cast<int>(i);
}

std::vector<std::size_t> UnitStep::members(std::size_t index) const {
  std::vector<std::size_t> all(states_[index].members);
  std::iota(all.begin(), all.end(), index);
  return all;
}

/// Issues the all-gather of a unit, or of its shard on the host.
void UnitStep::gather(std::size_t index, std::vector<int> after) {
  if (unit(index).alone()) return;
  State& state = states_[index];
  state.whole = layout_.shards_parameters();
  state.gathered = step_.offload().parameters ? units_.fetch_shard(index)
                                              : units_.gather(index, state.whole, std::move(after));
}

/// The same of the units of the same segments, unless they are there or are not gathered now.
/// A communicator runs its calls one after the other: the all-gather follows the latest reduction. One
/// that is prefetched (`ahead`) may overtake it here.
void UnitStep::gather_for_use(std::size_t index, bool ahead) {
  if (!layout_.gathers_for_use() || !is_missing(index)) return;
  for (const std::size_t each : members(index))
    gather(each, ahead || reduced_ < 0 ? std::vector<int>{} : std::vector<int>{reduced_});
  states_[index].in_flight = unit(index).name != "root";
}

/// True if some unit of the same segments is in shards now.
bool UnitStep::is_missing(std::size_t index) const {
  return std::ranges::any_of(
      members(index), [this](std::size_t each) { return !unit(each).alone() && !states_[each].whole; });
}

void UnitStep::free_parameters(std::size_t index) {
  for (const std::size_t each : members(index)) {
    if (!std::exchange(states_[each].whole, false)) continue;
    units_.free_parameters(each);
    states_[each].gathered = -1;
  }
}

/// Gathers what segments `from`, `from + direction`, ... need next: as many units as may wait beside the one
/// that computes, at least one, and none beyond the limit.
void UnitStep::prefetch(int from, int direction) {
  std::size_t deep = 0;
  for (int i = from; i >= 0 && i < static_cast<int>(used_.size()); i += direction) {
    if (used_[i].empty() || !is_missing(used_[i].front()) ||
        (direction < 0 && !step_.has(Phase::kBackward, i)))
      continue;
    const auto waiting = static_cast<std::size_t>(std::ranges::count_if(states_, &State::in_flight));
    const std::size_t limit = layout_.prefetch.limit;
    if (waiting >= limit || deep++ == std::max<std::size_t>(1, limit - 1)) return;
    gather_for_use(used_[i].front(), true);
  }
}

/// Adds the all-gathers that a segment waits for.
std::vector<int> UnitStep::wait_for(int segment, std::vector<int> after) {
  for (const std::size_t index : used_[segment])
    for (const std::size_t each : members(index)) {
      int& call = states_[each].gathered;
      if (call >= 0) after.push_back(call);
      if (!layout_.gathers_for_use()) call = -1;
    }
  return after;
}

void UnitStep::begin() {
  if (layout_.gather == Layout::Gather::kNever) return step_.zero_grad();
  const bool forwards = layout_.gather == Layout::Gather::kStep;  // buckets begin at the last segment
  for (std::size_t i = first_; i < states_.size(); ++i)
    if (forwards || layout_.gather == Layout::Gather::kNextStep)
      gather(forwards ? i : states_.size() - 1 - i + first_);
  for (std::size_t i = first_; layout_.keeps_gradients && i < states_.size(); ++i) take_gradients(i, {});
}

int UnitStep::forward(int segment, int micro_batch, std::vector<int> after, bool keeps_nothing) {
  if (segment == 0) gather_for_use(first_);  // the root, or the first unit
  for (const std::size_t index : used_[segment]) gather_for_use(index);
  if (layout_.prefetch.forward) prefetch(segment + 1, 1);
  const int forward = step_.forward(segment, micro_batch, wait_for(segment, std::move(after)), keeps_nothing);
  for (const std::size_t index : used_[segment]) {
    if (!layout_.gathers_for_use() || unit(index).segments.back() != segment) continue;
    states_[index].in_flight = false;
    const bool stays = layout_.gather == Layout::Gather::kBackward || unit(index).name == "root";
    if (!stays || states_[index].users == 0) free_parameters(index);
  }
  return forward;
}

/// Gradients of a unit come into being at its first backward.
void UnitStep::take_gradients(std::size_t index, const std::vector<int>& after) {
  if (layout_.gather == Layout::Gather::kNever) return;
  for (const std::size_t each : members(index)) {
    State& state = states_[each];
    if (!unit(each).trains() || std::exchange(state.gradients, true)) continue;
    const bool allocates = !layout_.keeps_gradients && !unit(each).alone();
    const bool one_by_one = layout_.fsdp && units_.copies();
    units_.zero_gradients(each, allocates && !one_by_one, after);
    if (allocates && one_by_one) state.to_make = unit(each).gradients();
  }
}

/// Tensors with arrays of their own get them at the backward of their segment, padding at the last one.
void UnitStep::make_gradients(std::size_t index, int segment, int backward, bool last) {
  for (const std::size_t each : members(index)) {
    Bytes& left = states_[each].to_make;
    Bytes size;
    for (const int tensor : unit(each).tensors)
      if (const Parameter& one = step_.model().parameters[tensor]; one.segment == segment)
        size += one.gradient;
    size = last ? left : std::min(left, size);
    left += -1.0 * size;
    if (size > Bytes(0))
      step_.change_memory(backward, {.category = MemoryCategory::kGradients, .size = size});
  }
}

int UnitStep::backward(int segment, int micro_batch, bool last, std::vector<int> after, Phase phase) {
  for (const std::size_t index : used_[segment]) {
    gather_for_use(index);
    take_gradients(index, wait_for(segment, {}));
  }
  if (layout_.prefetch.backward == "pre") prefetch(segment - 1, -1);
  const int backward = step_.backward(segment, micro_batch, wait_for(segment, std::move(after)), phase);
  const bool reduces = last || layout_.reduces_each;
  std::vector<std::size_t> complete;
  for (const std::size_t index : used_[segment]) {
    State& state = states_[index];
    if (!reduces && !layout_.gathers_for_use()) continue;
    if (state.pending == 0) state.pending = state.users;
    if (--state.pending == 0) complete.push_back(index);
    make_gradients(index, segment, backward, state.pending == 0);
  }
  std::ranges::sort(complete);
  finishes_ = true;  // those of the segment before, at the first of this one
  for (const std::size_t index : complete) {
    states_[index].in_flight = false;
    if (reduces || layout_.gather == Layout::Gather::kUse) free_parameters(index);
    if (layout_.prefetch.backward == "post") prefetch(segment - 1, -1);
    if (!reduces) continue;
    if (layout_.waits && layout_.keeps_gradients) {
      deferred_.push_back(index);
      continue;
    }
    reduce(index, micro_batch, last);
    if (layout_.waits) finish_reduction();
  }
  return backward;
}

void UnitStep::train(std::vector<int> after) {
  const int last = step_.last_micro_batch();
  for (int i = 0; i <= last; ++i) {
    for (const int segment : step_.segments()) forward(segment, i, std::exchange(after, {}));
    step_.loss(i);
    for (const int segment : step_.segments() | std::views::reverse)
      if (step_.has(Phase::kBackward, segment)) backward(segment, i, i == last);
    if (layout_.reduces_each && i < last) finish_reduction();  // the next one allocates gradients again
  }
}

/// Part of the division of a unit's gradients that comes before their reduction, as a divisor.
double UnitStep::first_division(const FsdpUnit& unit) const {
  const int ranks = layout_.shards * layout_.replicas;
  if (!layout_.fsdp || !unit.sharded || unit.alone()) return ranks;
  int factor = 1;
  while (ranks % factor == 0 && ranks / factor > factor) factor *= 2;
  return factor;
}

void UnitStep::reduce(std::size_t index, int micro_batch, bool last) {
  std::vector<std::size_t> trained = members(index);
  std::erase_if(trained,
                [&](std::size_t each) { return !unit(each).trains() || (unit(each).alone() && !last); });
  if (layout_.shards * layout_.replicas == 1 || trained.empty()) return;
  for (const std::size_t each : trained) units_.scale(each, 1.0 / first_division(unit(each)));
  if (!layout_.keeps_gradients && std::exchange(finishes_, false)) finish_reduction();
  const std::vector<int> after = step_.latest();
  for (const std::size_t each : trained) {
    if (unit(each).alone() && layout_.replicas > 1) averaged_.push_back(average(each, false, after.front()));
    if (unit(each).shards == 1) continue;
    Reduction one{.unit = each, .adds = layout_.reduces_each && micro_batch > 0, .last = last};
    reduced_ = one.call = units_.reduce(each, after, layout_.all_reduces, one.adds || sends_);
    if (layout_.replicas > 1 && layout_.averages_each) one.call = average(each, one.adds || sends_, one.call);
    reducing_.push_back(one);
  }
}

/// All-reduce of the shard over the ranks that have the same one.
int UnitStep::average(std::size_t index, bool incoming, int after) {
  return units_.reduce_shard(index, layout_.replica_group, {after},
                             "all_reduce/" + unit(index).name + (layout_.fsdp ? "" : "/replicas"), incoming);
}

/// Waits for reductions in flight, frees the whole gradients and adds up what arrived.
void UnitStep::finish_reduction() {
  for (const Reduction& one : std::exchange(reducing_, {})) {
    states_[one.unit].gradients = false;
    units_.finish(one, first_division(unit(one.unit)) / (layout_.shards * layout_.replicas), layout_, sends_);
    if (one.last && !layout_.averages_each)
      averaged_.push_back(average(one.unit, false, step_.latest().front()));
  }
}

std::vector<int> UnitStep::end_reduction() {
  std::vector<int> reduced;
  const auto wait_for_calls = [&] {
    if (!layout_.fsdp || layout_.keeps_gradients)
      for (const Reduction& one : reducing_) reduced.push_back(one.call);
    if (!layout_.keeps_gradients || layout_.all_reduces || layout_.waits) finish_reduction();
  };
  for (const std::size_t index : std::exchange(deferred_, {})) {
    reduce(index, 0, true);
    wait_for_calls();
  }
  wait_for_calls();
  if (layout_.all_reduces) reduced = step_.latest(Stream::kCompute);
  reduced.insert(reduced.end(), averaged_.begin(), averaged_.end());
  return reduced;
}

void UnitStep::update(std::vector<int> after) {
  if (layout_.gather == Layout::Gather::kNever) return step_.optimizer(std::move(after));
  if (step_.model().optimizer.kind == "none") return;
  for (std::size_t i = first_; i < states_.size(); ++i) {
    free_parameters(i);  // no backward used them
    if (!unit(i).trains()) continue;
    const std::vector<int> updated = units_.update(i, std::exchange(after, {}));
    if (layout_.gather == Layout::Gather::kAfterUpdate) gather(i, updated);
  }
}

}  // namespace stepcast
