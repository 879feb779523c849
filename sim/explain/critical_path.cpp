#include "sim/explain/critical_path.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <tuple>
#include <type_traits>

#include "core/overloaded.hpp"
#include "schedule/operations.hpp"

namespace stepcast {
namespace {

constexpr double kSame = 1e-9;  // of the step: dates that differ by less are one

/// An operation of a replayed rank.
struct OpPosition {
  int rank = 0;
  int op = -1;   ///< -1: the beginning of the step
  int back = 0;  ///< 1: of the step before
  [[nodiscard]] OpPosition at(int other) const { return {rank, other, back}; }
};

/// What of a step belongs together across ranks.
class Recorded {
 public:
  explicit Recorded(const Recording& recording) : recording_(recording) {
    for (const auto& [rank, one] : recording.ranks) {
      const double length = one.end_s - one.start_s;
      same_ = std::max(same_, kSame * length);
    }
  }

  [[nodiscard]] const Recording& recording() const { return recording_; }
  [[nodiscard]] const Program& program(int rank) const { return recording_.schedule.program(rank); }
  [[nodiscard]] const Op& op(OpPosition place) const { return program(place.rank).ops[place.op]; }
  [[nodiscard]] const RecordedRank& rank(int rank) const { return recording_.ranks.at(rank); }
  [[nodiscard]] const std::vector<RecordedOp>& ops(OpPosition place) const {
    return place.back == 0 ? rank(place.rank).ops : rank(place.rank).before;
  }
  [[nodiscard]] const RecordedOp& dates(OpPosition place) const { return ops(place)[place.op]; }
  [[nodiscard]] double start_of_step(OpPosition place) const {
    return place.back == 0 ? rank(place.rank).start_s : rank(place.rank).before_s;
  }
  [[nodiscard]] double same() const { return same_; }

  [[nodiscard]] bool on_main(OpPosition place) const { return op(place).stream == Stream::kCompute; }
  /// A hook runs on the main thread inside another operation.
  [[nodiscard]] bool is_hook(OpPosition place) const { return on_main(place) && op(place).within >= 0; }

  /// Who kept a collective or message of `place` from beginning, of those that it cannot go without: who came last.
  [[nodiscard]] std::optional<OpPosition> last_to_come(OpPosition place) {
    const std::vector<OpPosition> others = partners(place);
    if (others.empty()) return std::nullopt;
    OpPosition last = place;
    for (const OpPosition& other : others)
      if (dates(other).start_s > dates(last).start_s + same_ &&
          dates(other).start_s < dates(place).end_s + same_)
        last = other;
    return last;
  }

 private:
  [[nodiscard]] std::vector<OpPosition> partners(OpPosition place) {
    return std::visit(Overloaded{
                          [&](const Collective& collective) { return joined(place, collective); },
                          [&](const OneOf<Send, Recv> auto& message) { return other_end(place, message); },
                          [](const auto&) { return std::vector<OpPosition>(); },
                      },
                      op(place).action);
  }

  std::vector<OpPosition> joined(OpPosition place, const Collective& collective) {
    const int group = recording_.schedule.group_index(collective.group, place.rank);
    const std::vector<int>& own = calls(place.rank, group);
    const auto call = static_cast<std::size_t>(std::find(own.begin(), own.end(), place.op) - own.begin());
    const std::vector<int>& ranks = recording_.schedule.groups[group].ranks;
    const bool rooted = collective.kind == CollectiveKind::kGather ||
                        collective.kind == CollectiveKind::kScatter ||
                        collective.kind == CollectiveKind::kBroadcast;
    const int root = ranks[static_cast<std::size_t>(rooted ? collective.root : 0)];
    std::vector<OpPosition> result;
    std::set<int> seen;
    for (const int member : ranks) {
      const int stands = recording_.stands_for[member];
      if (rooted && root != place.rank && member != root && stands != place.rank) continue;
      if (!seen.insert(stands).second) continue;
      // The group of one that stands for a member may be another one that is alike.
      const std::vector<int>& theirs = calls(stands, group_of(stands, collective, place.rank, group));
      if (call < theirs.size()) result.push_back({stands, theirs[call], place.back});
    }
    return result;
  }

  /// The group that `rank` names by the same name, or the own where it is in it.
  [[nodiscard]] int group_of(int rank, const Collective& collective, int own_rank, int group) const {
    const std::vector<int>& ranks = recording_.schedule.groups[group].ranks;
    if (rank == own_rank || std::find(ranks.begin(), ranks.end(), rank) != ranks.end()) return group;
    return recording_.schedule.group_index(collective.group, rank);
  }

  /// Calls of `rank` in a group, in order.
  const std::vector<int>& calls(int rank, int group) {
    const auto [found, is_new] = calls_.try_emplace({rank, group});
    if (is_new)
      for (std::size_t i = 0; i < program(rank).ops.size(); ++i)
        if (const auto* call = std::get_if<Collective>(&program(rank).ops[i].action);
            call != nullptr && recording_.schedule.group_index(call->group, rank) == group)
          found->second.push_back(static_cast<int>(i));
    return found->second;
  }

  template <class Message>
  std::vector<OpPosition> other_end(OpPosition place, const Message& message) {
    constexpr bool kSends = std::is_same_v<Message, Send>;
    const int there = recording_.stands_for[place.rank + message.offset];
    const std::vector<int>& own = messages(place.rank, kSends, message.offset, message.tag);
    const std::vector<int>& theirs = messages(there, !kSends, -message.offset, message.tag);
    const auto number = static_cast<std::size_t>(std::find(own.begin(), own.end(), place.op) - own.begin());
    if (number >= theirs.size()) return {};
    return {place, {there, theirs[number], place.back}};
  }

  /// Sends or receives of `rank` with one partner and tag, in order.
  const std::vector<int>& messages(int rank, bool sends, int offset, int tag) {
    const int number = recording_.schedule.program_of_rank[rank];
    const bool is_new = !messages_.contains(number);
    auto& of_program = messages_[number];
    const std::vector<Op>& ops = program(rank).ops;
    for (std::size_t i = 0; is_new && i < ops.size(); ++i)
      std::visit(Overloaded{[&](const OneOf<Send, Recv> auto& one) {
                              const bool is_send = std::is_same_v<std::decay_t<decltype(one)>, Send>;
                              of_program[{is_send, one.offset, one.tag}].push_back(static_cast<int>(i));
                            },
                            [](const auto&) {}},
                 ops[i].action);
    return of_program[{sends, offset, tag}];
  }

  const Recording& recording_;
  double same_ = 0.0;
  std::map<std::pair<int, int>, std::vector<int>> calls_;  ///< by rank and group
  /// By program; whether they are sent, offset of the partner, tag.
  std::map<int, std::map<std::tuple<bool, int, int>, std::vector<int>>> messages_;
};

std::string layers_of(const Recording& recording, const std::vector<int>& tensors) {
  if (tensors.empty()) return "";
  const auto name = [&](int tensor) {
    const int segment = recording.segment_of_tensor[tensor];
    return segment < 0 ? std::string() : recording.segments[segment];
  };
  const auto [first, last] = std::minmax_element(tensors.begin(), tensors.end());
  return name(*first) == name(*last) ? name(*first) : name(*first) + ".." + name(*last);
}

/// `layer2` of `send/activation/layer2/mb0`.
std::string layer_of_message(const std::string& name) {
  std::string layer = name.substr(0, name.rfind("/mb"));
  return layer.substr(layer.rfind('/') + 1);
}

std::string layer_of(const Recording& recording, const Program& program, const Op& op) {
  const Schedule& schedule = recording.schedule;
  const auto segment = [&](int index) { return index < 0 ? std::string() : recording.segments[index]; };
  const auto payload = Overloaded{
      [&](const GradientArray& array) { return layers_of(recording, {array.tensor}); },
      [&](const BucketArray& array) { return layers_of(recording, schedule.buckets[array.bucket].tensors); },
      [&](const OneOf<UnitParameters, UnitGradients> auto& array) { return schedule.units[array.unit].name; },
      [&](const ExchangeArray&) {
        return op.within < 0 ? std::string() : layer_of(recording, program, program.ops[op.within]);
      },
      [](const BufferArray&) { return std::string(); }};
  return std::visit(
      Overloaded{
          [&](const Compute& compute) { return segment(compute.segment); },
          [&](const OneOf<CopyIn, Combine> auto& one) { return layers_of(recording, {one.tensor}); },
          [&](const CopyOut& copy) { return layers_of(recording, schedule.buckets[copy.bucket].tensors); },
          [&](const OneOf<ScaleUnit, UnitMemory, UpdateUnit> auto& one) {
            return schedule.units[one.unit].name;
          },
          [&](const OneOf<Send, Recv> auto&) { return layer_of_message(op.name); },
          [&](const Collective& collective) { return std::visit(payload, collective.payload); },
          [](const OneOf<LoadInput, Copy, Synchronize> auto&) { return std::string(); },
      },
      op.action);
}

std::string kind_of(const Op& op) {
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
      op.action);
}

/// Walks backwards; `now_` is the date up to which the step is explained from its end.
class Walk {
 public:
  explicit Walk(const Recording& recording) : world_(recording) {}

  CriticalPath run() {
    const Recording& recording = world_.recording();
    const RecordedRank& slowest = world_.rank(recording.slowest);
    path_.slowest = recording.slowest;
    path_.step_s = slowest.end_s - slowest.start_s;
    begin_ = slowest.start_s;
    now_ = slowest.end_s;
    OpPosition last = end_of_step({recording.slowest});
    while (last.op >= 0 && now_ > begin_) last = explain(last);
    charge(last, begin_, "the step before");
    std::reverse(path_.parts.begin(), path_.parts.end());
    std::reverse(path_.waits.begin(), path_.waits.end());
    return std::move(path_);
  }

 private:
  /// The time from `start` to what is explained is of this.
  void charge(OpPosition place, double start, const std::string& kind) {
    start = std::max(start, begin_);
    if (start >= now_) return;
    PathPart part{place.rank, place.op, start, now_, kind, "", ""};
    if (place.op >= 0) {
      part.layer = layer_of(world_.recording(), world_.program(place.rank), world_.op(place));
      if (const int links = world_.dates(place).links; links >= 0) {
        const FullestLinks& fullest = world_.recording().links[links];
        part.link = fullest.link.empty() ? fullest.tier : fullest.link;
      }
    }
    path_.parts.push_back(std::move(part));
    now_ = start;
  }

  /// What ended last in the step, which what is explained ends. \param step any place in it
  OpPosition end_of_step(OpPosition step) {
    OpPosition last = step.at(-1);
    const std::vector<RecordedOp>& ops = world_.ops(step);
    for (std::size_t i = 0; i < ops.size(); ++i)
      if (last.op < 0 || ops[i].end_s >= ops[last.op].end_s) last.op = static_cast<int>(i);
    if (last.op >= 0) charge(last.at(-1), world_.dates(last).end_s, "rest of the step");
    return last;
  }

  /// Charges what is left of an operation, and says what it began after.
  OpPosition explain(OpPosition place) {
    if (world_.on_main(place)) return explain_main(place);
    const auto last = world_.last_to_come(place);
    if (!last) {
      charge(place, world_.dates(place).start_s, kind_of(world_.op(place)));
      return before(place);
    }
    charge(place, world_.dates(*last).start_s, kind_of(world_.op(place)));
    if (last->rank != place.rank)
      path_.waits.push_back({place.rank, last->rank, world_.op(place).name,
                             world_.dates(*last).start_s - world_.dates(place).start_s});
    return before(*last);
  }

  /// A piece of an operation with hooks ends where the hook before it did.
  OpPosition explain_main(OpPosition place) {
    const std::vector<Op>& ops = world_.program(place.rank).ops;
    double start = world_.dates(place).start_s;
    OpPosition hook = place.at(-1);
    const int end = hook_limit_ > place.op ? hook_limit_ : static_cast<int>(ops.size());
    hook_limit_ = -1;
    for (int i = place.op + 1; i < end && !world_.is_hook(place); ++i) {
      const OpPosition each = place.at(i);
      if (world_.on_main(each) && ops[i].within != place.op) break;
      if (world_.is_hook(each) && world_.dates(each).end_s <= now_ + world_.same()) hook.op = i;
    }
    if (hook.op >= 0) start = world_.dates(hook).end_s;
    const double whole = now_ - std::max(start, begin_);
    double& host =
        host_.try_emplace({place.rank, place.op, place.back}, world_.dates(place).host_s).first->second;
    if (const double late = std::min(host, whole); late > 0.0) {
      host -= late;
      charge(place, now_ - late, "host issue");
    }
    charge(place, start, kind_of(world_.op(place)));
    return hook.op >= 0 ? hook : before(place);
  }

  /// What let an operation begin; the time between the two is charged to the host.
  OpPosition before(OpPosition place) {
    const Op& op = world_.op(place);
    const double start = std::min(now_, world_.dates(place).start_s);
    OpPosition best = place.at(-1);
    const auto consider = [&](int index) {
      const OpPosition one = place.at(index);
      if (world_.dates(one).end_s > start + world_.same()) return;
      if (best.op < 0 || world_.dates(one).end_s >= world_.dates(best).end_s) best = one;
    };
    for (const int each : op.after)
      if (each != op.within) consider(each);
    if (world_.is_hook(place)) return before_hook(place, best);
    if (world_.on_main(place))
      consider_main(place, consider);
    else
      consider_queue(place, consider);
    if (best.op >= 0 && world_.dates(best).end_s >= start - world_.same()) return reach(best);
    if (!world_.on_main(place)) return issuer(place, best);
    return reach(best, place);
  }

  OpPosition before_hook(OpPosition hook, OpPosition best) {
    if (best.op >= 0 && world_.dates(best).end_s >= world_.dates(hook).start_s - world_.same() &&
        (world_.is_hook(best) || !world_.on_main(best)))
      return reach(best);
    hook_limit_ = hook.op;
    return hook.at(world_.op(hook).within);
  }

  /// The main thread waits for its end.
  [[nodiscard]] bool holds_main(OpPosition place) const {
    const auto* copy = std::get_if<Copy>(&world_.op(place).action);
    return world_.on_main(place) || (copy != nullptr && copy->staged());
  }

  void consider_main(OpPosition place, const auto& consider) {
    for (int i = place.op - 1; i >= 0; --i) {
      const OpPosition one = place.at(i);
      if (!holds_main(one) || world_.is_hook(one)) continue;
      consider(i);
      return;
    }
  }

  /// Of those before it in its queue; calls ahead of the main thread are before earlier ones of its program.
  void consider_queue(OpPosition place, const auto& consider) {
    const Op& op = world_.op(place);
    if (operation_of(op).start != Start::kInTurn) return;
    const auto* own = std::get_if<Collective>(&op.action);
    const double start = world_.dates(place).start_s;
    for (int i = 0; i < static_cast<int>(world_.program(place.rank).ops.size()); ++i) {
      if (i >= place.op && world_.dates(place.at(i)).start_s >= start - world_.same()) continue;
      const Op& other = world_.op(place.at(i));
      if (other.stream != op.stream || operation_of(other).start != Start::kInTurn) continue;
      const auto* call = std::get_if<Collective>(&other.action);
      if (world_.recording().stream_per_group &&
          (own == nullptr ? -1 : own->group) != (call == nullptr ? -1 : call->group))
        continue;
      consider(i);
    }
  }

  /// The main thread, where it was as it issued an operation; or what the operation waited for before that.
  OpPosition issuer(OpPosition place, OpPosition best) {
    const double issued = world_.dates(place).issued_s;
    const std::vector<Op>& ops = world_.program(place.rank).ops;
    if (best.op >= 0 && world_.dates(best).end_s > issued) return reach(best, place);
    charge(place, issued, "host");
    for (int i = place.op - 1; i >= 0; --i) {
      const OpPosition one = place.at(i);
      if (!holds_main(one) || world_.dates(one).start_s > issued + world_.same()) continue;
      if (world_.is_hook(one) && world_.dates(one).end_s < issued - world_.same()) {
        hook_limit_ = place.op;
        return place.at(ops[i].within);
      }
      if (world_.dates(one).end_s > issued + world_.same()) hook_limit_ = place.op;
      return reach(one, place);
    }
    return reach(place.at(-1), place);
  }

  /// Goes on with an operation that ended, or is under way, at what is explained; what lies between is the host's.
  OpPosition reach(OpPosition next, OpPosition from = {}) {
    if (next.op < 0) {
      charge(from.op >= 0 ? from : next, world_.start_of_step(next), "host");
      return next.back == 0 ? end_of_step({next.rank, -1, 1}) : next;
    }
    if (from.op >= 0) charge(from, world_.dates(next).end_s, "host");
    return next;
  }

  Recorded world_;
  CriticalPath path_;
  double begin_ = 0.0;
  double now_ = 0.0;
  int hook_limit_ = -1;  ///< of the operation that is explained next: hooks from this one on come later
  std::map<std::tuple<int, int, int>, double> host_;  ///< by rank, operation and step, not yet charged
};

}  // namespace

CriticalPath critical_path(const Recording& recording) { return Walk(recording).run(); }

std::vector<std::pair<std::string, double>> contributions(
    const CriticalPath& path, const std::function<std::string(const PathPart&)>& key) {
  std::map<std::string, double> sums;
  for (const PathPart& part : path.parts) sums[key(part)] += part.seconds();
  std::vector<std::pair<std::string, double>> result(sums.begin(), sums.end());
  std::stable_sort(result.begin(), result.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  return result;
}

namespace {

/// From one date to another a main thread stood still for a rank that had yet to come.
struct Waiting {
  double start_s = 0.0, end_s = 0.0;
  int for_rank = 0;
};

/// By rank, in order of time.
std::map<int, std::vector<Waiting>> waiting_times(const Recording& recording) {
  Recorded world(recording);
  std::map<int, std::vector<Waiting>> result;
  for (const auto& [rank, record] : recording.ranks) {
    double free_from = record.start_s;
    for (std::size_t i = 0; i < record.ops.size(); ++i) {
      const OpPosition place{rank, static_cast<int>(i)};
      if (!world.on_main(place)) continue;
      const double start = world.dates(place).start_s;
      OpPosition cause{rank, -1};
      for (const int each : world.op(place).after)
        if (const OpPosition one{rank, each};
            !world.on_main(one) && std::abs(world.dates(one).end_s - start) <= world.same())
          cause = one;
      // A hook stands still from when what it waits for was issued, since its operation could go no further; but behind a
      // shift it could, nobody says how far.
      const bool known = cause.op >= 0 && !is_shift(world.op(cause));
      if (world.is_hook(place)) free_from = known ? world.dates(cause).issued_s : start;
      const auto last = cause.op < 0 ? std::nullopt : world.last_to_come(cause);
      if (last && last->rank != rank) {
        const Waiting one{std::max(free_from, world.dates(cause).start_s),
                          std::min(start, world.dates(*last).start_s), last->rank};
        if (one.end_s - one.start_s > world.same()) result[rank].push_back(one);
      }
      free_from = world.dates(place).end_s;
    }
  }
  return result;
}

/// Splits the time in which `rank` waits by whom its partner waits for meanwhile.
void blame(const std::map<int, std::vector<Waiting>>& all, const Waiting& one, int depth,
           std::map<int, double>& because_of) {
  double own = one.end_s - one.start_s;
  const auto theirs = all.find(one.for_rank);
  for (const Waiting& other : theirs == all.end() || depth == 0 ? std::vector<Waiting>() : theirs->second) {
    const Waiting meanwhile{std::max(one.start_s, other.start_s), std::min(one.end_s, other.end_s),
                            other.for_rank};
    if (meanwhile.end_s <= meanwhile.start_s) continue;
    own -= meanwhile.end_s - meanwhile.start_s;
    blame(all, meanwhile, depth - 1, because_of);
  }
  because_of[one.for_rank] += own;
}

}  // namespace

std::vector<Standstill> standstills(const Recording& recording) {
  const std::map<int, std::vector<Waiting>> all = waiting_times(recording);
  std::map<std::tuple<int, int, int>, double> sums;
  for (const auto& [rank, times] : all)
    for (const Waiting& one : times) {
      std::map<int, double> because_of;
      blame(all, one, static_cast<int>(recording.ranks.size()), because_of);
      for (const auto& [straggler, seconds] : because_of) sums[{rank, one.for_rank, straggler}] += seconds;
    }
  std::vector<Standstill> result;
  for (const auto& [who, seconds] : sums)
    if (seconds > 0.0) result.push_back({std::get<0>(who), std::get<1>(who), std::get<2>(who), seconds});
  std::stable_sort(result.begin(), result.end(),
                   [](const Standstill& a, const Standstill& b) { return a.seconds > b.seconds; });
  return result;
}

std::pair<int, double> most_waited_for(const std::vector<Standstill>& standstills) {
  std::map<int, double> sums;
  for (const Standstill& one : standstills) sums[one.because_of] += one.seconds;
  return *std::max_element(sums.begin(), sums.end(),
                           [](const auto& a, const auto& b) { return a.second < b.second; });
}

std::map<int, double> computing(const Recording& recording) {
  std::map<int, double> result;
  for (const auto& [rank, record] : recording.ranks) {
    std::vector<Span> spans;
    for (std::size_t i = 0; i < record.ops.size(); ++i)
      spans.push_back(span_of(rank, recording.schedule.program(rank).ops[i],
                              record.ops[i].start_s - record.start_s, record.ops[i].end_s - record.start_s));
    result[rank] = make_breakdown(spans, rank, record.end_s - record.start_s).compute_s;
  }
  return result;
}

}  // namespace stepcast
