#include "sim/explain/critical_path.hpp"

#include <algorithm>
#include <map>
#include <tuple>

#include "schedule/operations.hpp"
#include "sim/explain/recorded_step.hpp"

namespace stepcast {
namespace {

/// Walks backwards. The step is explained from its end back to `now_`.
struct Walk {
  RecordedStep world;

  CriticalPath run() {
    const Recording& recording = world.recording();
    const RecordedRank& slowest = world.rank(recording.slowest);
    path.slowest = recording.slowest;
    path.step_s = slowest.end_s - slowest.start_s;
    begin = slowest.start_s;
    now = slowest.end_s;
    RecordedPosition last = end_of_step({recording.slowest});
    while (last.op >= 0 && now > begin) last = explain(last);
    charge(last, begin, "the step before");
    std::ranges::reverse(path.parts);
    std::ranges::reverse(path.waits);
    return std::move(path);
  }

  /// Adds the time from `start` to `now` to the path.
  void charge(RecordedPosition position, double start, const std::string& kind) {
    start = std::max(start, begin);
    if (start >= now) return;
    PathPart part{position.rank, position.op, start, now, kind, "", ""};
    if (position.op >= 0) {
      part.layer = world.layer(position);
      if (const int links = world.times(position).links; links >= 0) {
        const FullestLinks& fullest = world.recording().links[links];
        part.link = fullest.link.empty() ? fullest.tier : fullest.link;
      }
    }
    path.parts.push_back(std::move(part));
    now = start;
  }

  /// Operation that ended last in a step. \param step any position in it
  RecordedPosition end_of_step(RecordedPosition step) {
    RecordedPosition last = step.at(-1);
    const std::vector<RecordedOp>& ops = world.ops(step);
    for (std::size_t i = 0; i < ops.size(); ++i)
      if (last.op < 0 || ops[i].end_s >= ops[last.op].end_s) last.op = static_cast<int>(i);
    if (last.op >= 0) charge(last.at(-1), world.times(last).end_s, "rest of the step");
    return last;
  }

  /// Adds the unexplained part of an operation. Returns the operation that allowed it to begin.
  RecordedPosition explain(RecordedPosition position) {
    if (world.on_main(position)) return explain_main(position);
    const auto last = world.last_to_join(position);
    if (!last) {
      charge(position, world.times(position).start_s, world.kind(position));
      return before(position);
    }
    charge(position, world.times(*last).start_s, world.kind(position));
    if (last->rank != position.rank)
      path.waits.push_back({position.rank, last->rank, world.op(position).name,
                            world.times(*last).start_s - world.times(position).start_s});
    return before(*last);
  }

  /// The same on the main thread. A hook splits its parent into pieces.
  RecordedPosition explain_main(RecordedPosition position) {
    const std::vector<Op>& ops = world.program(position.rank).ops;
    double start = world.times(position).start_s;
    RecordedPosition hook = position.at(-1);
    const int end = hook_limit > position.op ? hook_limit : static_cast<int>(ops.size());
    hook_limit = -1;
    for (int i = position.op + 1; i < end && !world.is_hook(position); ++i) {
      const RecordedPosition each = position.at(i);
      if (world.on_main(each) && ops[i].within != position.op) break;
      if (world.is_hook(each) && world.times(each).end_s <= now + world.tolerance()) hook.op = i;
    }
    if (hook.op >= 0) start = world.times(hook).end_s;
    const double whole = now - std::max(start, begin);
    double& host =
        host_times.try_emplace({position.rank, position.op, position.back}, world.times(position).host_s)
            .first->second;
    if (const double late = std::min(host, whole); late > 0.0) {
      host -= late;
      charge(position, now - late, "host issue");
    }
    charge(position, start, world.kind(position));
    return hook.op >= 0 ? hook : before(position);
  }

  /// Returns the operation that allowed one to begin. The time between them is the host's.
  RecordedPosition before(RecordedPosition position) {
    const Op& op = world.op(position);
    const double start = std::min(now, world.times(position).start_s);
    RecordedPosition best = position.at(-1);
    const auto consider = [&](int index) {
      const RecordedPosition one = position.at(index);
      if (world.times(one).end_s > start + world.tolerance()) return;
      if (best.op < 0 || world.times(one).end_s >= world.times(best).end_s) best = one;
    };
    for (const int each : op.after)
      if (each != op.within) consider(each);
    if (world.is_hook(position)) return before_hook(position, best);
    if (world.on_main(position))
      consider_main(position, consider);
    else
      consider_queue(position, consider);
    if (best.op >= 0 && world.times(best).end_s >= start - world.tolerance()) return reach(best);
    if (!world.on_main(position)) return issuer(position, best);
    return reach(best, position);
  }

  RecordedPosition before_hook(RecordedPosition hook, RecordedPosition best) {
    if (best.op >= 0 && world.times(best).end_s >= world.times(hook).start_s - world.tolerance() &&
        (world.is_hook(best) || !world.on_main(best)))
      return reach(best);
    hook_limit = hook.op;
    return hook.at(world.op(hook).within);
  }

  /// Whether the main thread waits for its end.
  [[nodiscard]] bool holds_main(RecordedPosition position) const {
    const auto* copy = std::get_if<Copy>(&world.op(position).action);
    return world.on_main(position) || (copy != nullptr && copy->staged());
  }

  void consider_main(RecordedPosition position, const auto& consider) {
    int i = position.op - 1;
    while (i >= 0 && (!holds_main(position.at(i)) || world.is_hook(position.at(i)))) --i;
    if (i >= 0) consider(i);
  }

  /// Considers the operations before it in its queue. Calls ahead of the main thread come before earlier
  /// ones of the program.
  void consider_queue(RecordedPosition position, const auto& consider) {
    const Op& op = world.op(position);
    if (operation_of(op).start != Start::kInTurn) return;
    const auto* own = std::get_if<Collective>(&op.action);
    const double start = world.times(position).start_s;
    for (int i = 0; i < static_cast<int>(world.program(position.rank).ops.size()); ++i) {
      if (i >= position.op && world.times(position.at(i)).start_s >= start - world.tolerance()) continue;
      const Op& other = world.op(position.at(i));
      if (other.stream != op.stream || operation_of(other).start != Start::kInTurn) continue;
      const auto* call = std::get_if<Collective>(&other.action);
      if (world.recording().stream_per_group &&
          (own == nullptr ? -1 : own->group) != (call == nullptr ? -1 : call->group))
        continue;
      consider(i);
    }
  }

  /// The main thread's operation when it issued one; or an operation that ended after that.
  RecordedPosition issuer(RecordedPosition position, RecordedPosition best) {
    const double issued = world.times(position).issued_s;
    const std::vector<Op>& ops = world.program(position.rank).ops;
    if (best.op >= 0 && world.times(best).end_s > issued) return reach(best, position);
    charge(position, issued, "host");
    for (int i = position.op - 1; i >= 0; --i) {
      const RecordedPosition one = position.at(i);
      if (!holds_main(one) || world.times(one).start_s > issued + world.tolerance()) continue;
      if (world.is_hook(one) && world.times(one).end_s < issued - world.tolerance()) {
        hook_limit = position.op;
        return position.at(ops[i].within);
      }
      if (world.times(one).end_s > issued + world.tolerance()) hook_limit = position.op;
      return reach(one, position);
    }
    return reach(position.at(-1), position);
  }

  /// Continues with an operation that ended or is running at `now`. The time between them is the host's.
  RecordedPosition reach(RecordedPosition next, RecordedPosition from = {}) {
    if (next.op < 0) {
      charge(from.op >= 0 ? from : next, world.start_of_step(next), "host");
      return next.back == 0 ? end_of_step({next.rank, -1, 1}) : next;
    }
    if (from.op >= 0) charge(from, world.times(next).end_s, "host");
    return next;
  }

  CriticalPath path{};
  double begin = 0.0, now = 0.0;
  int hook_limit = -1;  ///< hooks of the next operation from this one on come later
  std::map<std::tuple<int, int, int>, double> host_times{};  ///< not yet added, by rank, operation and step
};

}  // namespace

CriticalPath critical_path(const Recording& recording) { return Walk{RecordedStep(recording)}.run(); }

Contributions contributions(const CriticalPath& path,
                            const std::function<std::string(const PathPart&)>& key) {
  std::map<std::string, double> sums;
  for (const PathPart& part : path.parts) sums[key(part)] += part.seconds();
  Contributions result(sums.begin(), sums.end());
  std::ranges::stable_sort(result, std::greater(), &std::pair<std::string, double>::second);
  return result;
}

}  // namespace stepcast
