#include "sim/explain/critical_path.hpp"

#include <algorithm>
#include <map>
#include <tuple>

#include "schedule/operations.hpp"
#include "sim/explain/recorded_step.hpp"

namespace stepcast {
namespace {

/// Walks backwards. The step is explained from its end back to `now_`.
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
    RecordedPosition last = end_of_step({recording.slowest});
    while (last.op >= 0 && now_ > begin_) last = explain(last);
    charge(last, begin_, "the step before");
    std::ranges::reverse(path_.parts);
    std::ranges::reverse(path_.waits);
    return std::move(path_);
  }

 private:
  /// Adds the time from `start` to `now_` to the path.
  void charge(RecordedPosition position, double start, const std::string& kind) {
    start = std::max(start, begin_);
    if (start >= now_) return;
    PathPart part{position.rank, position.op, start, now_, kind, "", ""};
    if (position.op >= 0) {
      part.layer = world_.layer(position);
      if (const int links = world_.times(position).links; links >= 0) {
        const FullestLinks& fullest = world_.recording().links[links];
        part.link = fullest.link.empty() ? fullest.tier : fullest.link;
      }
    }
    path_.parts.push_back(std::move(part));
    now_ = start;
  }

  /// Operation that ended last in a step. \param step any position in it
  RecordedPosition end_of_step(RecordedPosition step) {
    RecordedPosition last = step.at(-1);
    const std::vector<RecordedOp>& ops = world_.ops(step);
    for (std::size_t i = 0; i < ops.size(); ++i)
      if (last.op < 0 || ops[i].end_s >= ops[last.op].end_s) last.op = static_cast<int>(i);
    if (last.op >= 0) charge(last.at(-1), world_.times(last).end_s, "rest of the step");
    return last;
  }

  /// Adds the unexplained part of an operation. Returns the operation that allowed it to begin.
  RecordedPosition explain(RecordedPosition position) {
    if (world_.on_main(position)) return explain_main(position);
    const auto last = world_.last_to_join(position);
    if (!last) {
      charge(position, world_.times(position).start_s, world_.kind(position));
      return before(position);
    }
    charge(position, world_.times(*last).start_s, world_.kind(position));
    if (last->rank != position.rank)
      path_.waits.push_back({position.rank, last->rank, world_.op(position).name,
                             world_.times(*last).start_s - world_.times(position).start_s});
    return before(*last);
  }

  /// The same on the main thread. A hook splits its parent into pieces.
  RecordedPosition explain_main(RecordedPosition position) {
    const std::vector<Op>& ops = world_.program(position.rank).ops;
    double start = world_.times(position).start_s;
    RecordedPosition hook = position.at(-1);
    const int end = hook_limit_ > position.op ? hook_limit_ : static_cast<int>(ops.size());
    hook_limit_ = -1;
    for (int i = position.op + 1; i < end && !world_.is_hook(position); ++i) {
      const RecordedPosition each = position.at(i);
      if (world_.on_main(each) && ops[i].within != position.op) break;
      if (world_.is_hook(each) && world_.times(each).end_s <= now_ + world_.tolerance()) hook.op = i;
    }
    if (hook.op >= 0) start = world_.times(hook).end_s;
    const double whole = now_ - std::max(start, begin_);
    double& host =
        host_.try_emplace({position.rank, position.op, position.back}, world_.times(position).host_s)
            .first->second;
    if (const double late = std::min(host, whole); late > 0.0) {
      host -= late;
      charge(position, now_ - late, "host issue");
    }
    charge(position, start, world_.kind(position));
    return hook.op >= 0 ? hook : before(position);
  }

  /// Returns the operation that allowed one to begin. The time between them is the host's.
  RecordedPosition before(RecordedPosition position) {
    const Op& op = world_.op(position);
    const double start = std::min(now_, world_.times(position).start_s);
    RecordedPosition best = position.at(-1);
    const auto consider = [&](int index) {
      const RecordedPosition one = position.at(index);
      if (world_.times(one).end_s > start + world_.tolerance()) return;
      if (best.op < 0 || world_.times(one).end_s >= world_.times(best).end_s) best = one;
    };
    for (const int each : op.after)
      if (each != op.within) consider(each);
    if (world_.is_hook(position)) return before_hook(position, best);
    if (world_.on_main(position))
      consider_main(position, consider);
    else
      consider_queue(position, consider);
    if (best.op >= 0 && world_.times(best).end_s >= start - world_.tolerance()) return reach(best);
    if (!world_.on_main(position)) return issuer(position, best);
    return reach(best, position);
  }

  RecordedPosition before_hook(RecordedPosition hook, RecordedPosition best) {
    if (best.op >= 0 && world_.times(best).end_s >= world_.times(hook).start_s - world_.tolerance() &&
        (world_.is_hook(best) || !world_.on_main(best)))
      return reach(best);
    hook_limit_ = hook.op;
    return hook.at(world_.op(hook).within);
  }

  /// Whether the main thread waits for its end.
  [[nodiscard]] bool holds_main(RecordedPosition position) const {
    const auto* copy = std::get_if<Copy>(&world_.op(position).action);
    return world_.on_main(position) || (copy != nullptr && copy->staged());
  }

  void consider_main(RecordedPosition position, const auto& consider) {
    int i = position.op - 1;
    while (i >= 0 && (!holds_main(position.at(i)) || world_.is_hook(position.at(i)))) --i;
    if (i >= 0) consider(i);
  }

  /// Considers the operations before it in its queue. Calls ahead of the main thread come before earlier
  /// ones of the program.
  void consider_queue(RecordedPosition position, const auto& consider) {
    const Op& op = world_.op(position);
    if (operation_of(op).start != Start::kInTurn) return;
    const auto* own = std::get_if<Collective>(&op.action);
    const double start = world_.times(position).start_s;
    for (int i = 0; i < static_cast<int>(world_.program(position.rank).ops.size()); ++i) {
      if (i >= position.op && world_.times(position.at(i)).start_s >= start - world_.tolerance()) continue;
      const Op& other = world_.op(position.at(i));
      if (other.stream != op.stream || operation_of(other).start != Start::kInTurn) continue;
      const auto* call = std::get_if<Collective>(&other.action);
      if (world_.recording().stream_per_group &&
          (own == nullptr ? -1 : own->group) != (call == nullptr ? -1 : call->group))
        continue;
      consider(i);
    }
  }

  /// The main thread's operation when it issued one; or an operation that ended after that.
  RecordedPosition issuer(RecordedPosition position, RecordedPosition best) {
    const double issued = world_.times(position).issued_s;
    const std::vector<Op>& ops = world_.program(position.rank).ops;
    if (best.op >= 0 && world_.times(best).end_s > issued) return reach(best, position);
    charge(position, issued, "host");
    for (int i = position.op - 1; i >= 0; --i) {
      const RecordedPosition one = position.at(i);
      if (!holds_main(one) || world_.times(one).start_s > issued + world_.tolerance()) continue;
      if (world_.is_hook(one) && world_.times(one).end_s < issued - world_.tolerance()) {
        hook_limit_ = position.op;
        return position.at(ops[i].within);
      }
      if (world_.times(one).end_s > issued + world_.tolerance()) hook_limit_ = position.op;
      return reach(one, position);
    }
    return reach(position.at(-1), position);
  }

  /// Continues with an operation that ended or is running at `now_`. The time between them is the host's.
  RecordedPosition reach(RecordedPosition next, RecordedPosition from = {}) {
    if (next.op < 0) {
      charge(from.op >= 0 ? from : next, world_.start_of_step(next), "host");
      return next.back == 0 ? end_of_step({next.rank, -1, 1}) : next;
    }
    if (from.op >= 0) charge(from, world_.times(next).end_s, "host");
    return next;
  }

  RecordedStep world_;
  CriticalPath path_;
  double begin_ = 0.0;
  double now_ = 0.0;
  int hook_limit_ = -1;  ///< hooks of the next operation from this one on come later
  std::map<std::tuple<int, int, int>, double> host_;  ///< not yet added, by rank, operation and step
};

}  // namespace

CriticalPath critical_path(const Recording& recording) { return Walk(recording).run(); }

Contributions contributions(const CriticalPath& path,
                            const std::function<std::string(const PathPart&)>& key) {
  std::map<std::string, double> sums;
  for (const PathPart& part : path.parts) sums[key(part)] += part.seconds();
  Contributions result(sums.begin(), sums.end());
  std::ranges::stable_sort(result, std::greater(), &std::pair<std::string, double>::second);
  return result;
}

}  // namespace stepcast
