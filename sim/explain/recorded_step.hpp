#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <variant>
#include <vector>

#include "core/overloaded.hpp"
#include "core/ranges.hpp"
#include "schedule/operations.hpp"
#include "sim/replay/recording.hpp"

namespace stepcast {

/// An operation of a replayed rank.
struct RecordedPosition {
  int rank = 0;
  int op = -1;   ///< -1: the beginning of the step
  int back = 0;  ///< 1: in the step before
  [[nodiscard]] RecordedPosition at(int other) const { return {rank, other, back}; }
};

/// Operations of a Recording, and which of them wait for each other across ranks. The Recording outlives it.
class RecordedStep {
 public:
  explicit RecordedStep(const Recording& recording) : recording_(recording) {
    constexpr double kSame = 1e-9;  // of the step
    for (const auto& [rank, one] : recording.ranks)
      tolerance_ = std::max(tolerance_, kSame * (one.end_s - one.start_s));
  }

  [[nodiscard]] const Recording& recording() const { return recording_; }
  [[nodiscard]] const Program& program(int rank) const { return recording_.schedule.program(rank); }
  [[nodiscard]] const Op& op(RecordedPosition position) const {
    return program(position.rank).ops[position.op];
  }

  [[nodiscard]] const RecordedRank& rank(int rank) const { return recording_.ranks.at(rank); }
  [[nodiscard]] const std::vector<RecordedOp>& ops(RecordedPosition position) const {
    return position.back == 0 ? rank(position.rank).ops : rank(position.rank).before;
  }

  [[nodiscard]] const RecordedOp& times(RecordedPosition position) const {
    return ops(position)[position.op];
  }

  [[nodiscard]] double start_of_step(RecordedPosition position) const {
    return position.back == 0 ? rank(position.rank).start_s : rank(position.rank).before_s;
  }

  /// Times that differ by less are equal, s.
  [[nodiscard]] double tolerance() const { return tolerance_; }

  [[nodiscard]] bool on_main(RecordedPosition position) const {
    return op(position).stream == Stream::kCompute;
  }

  /// A hook runs on the main thread inside its parent operation.
  [[nodiscard]] bool is_hook(RecordedPosition position) const {
    return on_main(position) && op(position).within >= 0;
  }

  /// The operation that joined a collective or message last, among those that it cannot start without. None
  /// for other operations.
  [[nodiscard]] std::optional<RecordedPosition> last_to_join(RecordedPosition position) {
    const std::vector<RecordedPosition> others = partners(position);
    if (others.empty()) return std::nullopt;
    RecordedPosition last = position;
    for (const RecordedPosition& other : others)
      if (times(other).start_s > times(last).start_s + tolerance_ &&
          times(other).start_s < times(position).end_s + tolerance_)
        last = other;
    return last;
  }

  /// `backward`, `all_reduce`, `message`, ...
  [[nodiscard]] std::string kind(RecordedPosition position) const {
    return std::visit(
        Overloaded{
            [](const LoadInput&) -> std::string { return "input"; },
            [](const Compute& compute) -> std::string { return to_text(compute.phase); },
            [](const OneOf<CopyIn, CopyOut, Combine, ScaleUnit, UnitMemory> auto&) -> std::string {
              return "gradient copies";
            },
            [](const UpdateUnit&) -> std::string { return "optimizer"; },
            [](const Collective& collective) -> std::string { return to_text(collective.kind); },
            [](const OneOf<Send, Recv> auto&) -> std::string { return "message"; },
            [](const Copy&) -> std::string { return "copy"; },
            [](const Synchronize&) -> std::string { return "wait"; },
        },
        op(position).action);
  }

  /// `layer3`, or `layer9..layer11` for arrays of several layers; "" without a layer.
  [[nodiscard]] std::string layer(RecordedPosition position) const {
    const Schedule& schedule = recording_.schedule;
    const Op& one = op(position);
    const auto payload = Overloaded{
        [&](const GradientArray& array) { return layers({array.tensor}); },
        [&](const BucketArray& array) { return layers(schedule.buckets[array.bucket].tensors); },
        [&](const OneOf<UnitParameters, UnitGradients> auto& array) {
          return schedule.units[array.unit].name;
        },
        [&](const ExchangeArray&) { return one.within < 0 ? std::string() : layer(position.at(one.within)); },
        [](const BufferArray&) { return std::string(); }};
    return std::visit(
        Overloaded{
            [&](const Compute& compute) { return segment(compute.segment); },
            [&](const OneOf<CopyIn, Combine> auto& copy) { return layers({copy.tensor}); },
            [&](const CopyOut& copy) { return layers(schedule.buckets[copy.bucket].tensors); },
            [&](const OneOf<ScaleUnit, UnitMemory, UpdateUnit> auto& unit) {
              return schedule.units[unit.unit].name;
            },
            [&](const OneOf<Send, Recv> auto& message) { return segment(message.payload.segment); },
            [&](const Collective& collective) { return std::visit(payload, collective.payload); },
            [](const OneOf<LoadInput, Copy, Synchronize> auto&) { return std::string(); },
        },
        one.action);
  }

 private:
  /// Calls of one group, or messages in one direction with one offset and tag.
  using SequenceKey = std::tuple<char, int, int>;

  [[nodiscard]] SequenceKey key_of(const Op& op, int rank) const {
    return std::visit(
        Overloaded{[&](const Collective& call) {
                     return SequenceKey{'c', recording_.schedule.group_index(call.group, rank), 0};
                   },
                   [](const Send& message) {
                     return SequenceKey{'s', message.offset, message.tag};
                   },
                   [](const Recv& message) {
                     return SequenceKey{'r', message.offset, message.tag};
                   },
                   [](const auto&) { return SequenceKey{}; }},
        op.action);
  }

  /// Operations of a rank with one key, in program order.
  const std::vector<int>& sequence(int rank, const SequenceKey& key) {
    const auto [found, is_new] = sequences_.try_emplace(rank);
    const std::vector<Op>& ops = program(rank).ops;
    for (std::size_t i = 0; is_new && i < ops.size(); ++i)
      found->second[key_of(ops[i], rank)].push_back(static_cast<int>(i));
    return found->second[key];
  }

  std::vector<RecordedPosition> partners(RecordedPosition position) {
    const auto other_end = [&](char direction, const auto& message) -> std::vector<RecordedPosition> {
      const std::vector<int>& own = sequence(position.rank, key_of(op(position), position.rank));
      const int peer = recording_.stands_for[position.rank + message.offset];
      const std::vector<int>& theirs = sequence(peer, {direction, -message.offset, message.tag});
      const auto number = static_cast<std::size_t>(std::ranges::find(own, position.op) - own.begin());
      if (number >= theirs.size()) return {};
      return {position, {peer, theirs[number], position.back}};
    };
    return std::visit(Overloaded{[&](const Collective& collective) { return members(position, collective); },
                                 [&](const Send& message) { return other_end('r', message); },
                                 [&](const Recv& message) { return other_end('s', message); },
                                 [](const auto&) { return std::vector<RecordedPosition>(); }},
                      op(position).action);
  }

  std::vector<RecordedPosition> members(RecordedPosition position, const Collective& collective) {
    const Schedule& schedule = recording_.schedule;
    const int group = schedule.group_index(collective.group, position.rank);
    const std::vector<int>& ranks = schedule.groups[group].ranks;
    const std::vector<int>& own = sequence(position.rank, {'c', group, 0});
    const auto call = static_cast<std::size_t>(std::ranges::find(own, position.op) - own.begin());
    const bool rooted = traits(collective.kind).rooted;
    const int root = ranks[rooted ? collective.root : 0];
    std::vector<RecordedPosition> result;
    std::set<int> seen;
    for (const int member : ranks) {
      const int replayed = recording_.stands_for[member];
      if (rooted && root != position.rank && member != root && replayed != position.rank) continue;
      if (!seen.insert(replayed).second) continue;
      // The replayed rank may be in another group of the same family.
      const bool same_group = replayed == position.rank || contains(ranks, replayed);
      const std::vector<int>& theirs =
          sequence(replayed, {'c', same_group ? group : schedule.group_index(collective.group, replayed), 0});
      if (call < theirs.size()) result.push_back({replayed, theirs[call], position.back});
    }
    return result;
  }

  [[nodiscard]] std::string layers(const std::vector<int>& tensors) const {
    if (tensors.empty()) return "";
    const auto [first, last] = std::ranges::minmax_element(tensors);
    const std::string from = segment(recording_.segment_of_tensor[*first]),
                      to = segment(recording_.segment_of_tensor[*last]);
    return from == to ? from : from + ".." + to;
  }

  [[nodiscard]] std::string segment(int index) const {
    return index < 0 ? std::string() : recording_.segments[index];
  }

  const Recording& recording_;
  double tolerance_ = 0.0;
  std::map<int, std::map<SequenceKey, std::vector<int>>> sequences_;  ///< by rank
};

}  // namespace stepcast
