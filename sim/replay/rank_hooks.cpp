#include <algorithm>
#include <utility>

#include "sim/replay/rank_run.hpp"

namespace stepcast {

void RankRun::spend(double seconds, double now) {
  launches_.busy_until =
      std::max(launches_.busy_until, now - world_.input.compute.launch->ahead.count()) + seconds;
}

/// With per-phase synchronisation the launch thread cannot run ahead into the next phase.
void RankRun::begin_phase(const Op& op) {
  const auto* compute = std::get_if<Compute>(&op.action);
  const std::optional<LaunchThread>& launch = world_.input.compute.launch;
  if (!launch || !launch->waits_by_phase || compute == nullptr) return;
  const std::pair now{compute->phase, micro_batch_of(op)};
  if (std::exchange(launches_.phase, now) != now)
    launches_.busy_until = std::max(launches_.busy_until, world_.clock.now());
}

double RankRun::paced(double seconds, double issue, double now, int index) {
  if (!world_.input.compute.launch) return seconds;
  spend(issue, now);
  const double late = launches_.busy_until - now - seconds;
  if (late <= 0.0) return seconds;
  if (!now_.record.causes.empty()) now_.record.causes[index].host += late;
  return launches_.busy_until - now;
}

bool RankRun::run_paced(const Job& job, double issue, int index, const Callback& ended) {
  if (!world_.input.compute.launch) return run_job(job, ended);
  const double now = world_.clock.now();
  spend(issue, now);
  const double earliest = now + (launches_.busy_until - now);
  const auto wait = [this, index, ended, earliest] {
    const double late = earliest - world_.clock.now();
    if (late <= 0.0) return ended();
    if (!now_.record.causes.empty()) now_.record.causes[index].host += late;
    world_.clock.at(earliest, ended);
  };
  if (run_job(job, wait)) return true;
  if (earliest <= now) return false;
  wait();
  return true;
}

/// Calls all-gathers of the next unit's parameters and copies of its shard from the host, which depend on
/// nothing that is computed.
void RankRun::call_ahead() {
  if (!world_.input.compute.launch) return;
  for (std::size_t i = static_cast<std::size_t>(main_.next); i < index_.program.ops.size(); ++i) {
    const Op& each = index_.program.ops[i];
    if (std::holds_alternative<Compute>(each.action)) return;
    const auto* collective = std::get_if<Collective>(&each.action);
    const bool gathers = collective != nullptr && collective->kind == CollectiveKind::kAllGather &&
                         std::holds_alternative<UnitParameters>(collective->payload);
    if ((!gathers && !is_launched_ahead(static_cast<int>(i))) || now_.called_early[i] != 0 ||
        std::ranges::any_of(each.after, [&](int before) { return now_.called_early[before] == 0; }))
      continue;
    issue(static_cast<int>(i));
    now_.called_early[i] = 1;
  }
}

void RankRun::begin_parent(int index) {
  parent_.op = index;
  parent_.job = job(index);
  parent_.done = 0.0;
  begin_credit(index);
  begin_phase(op(index));
  call_ahead();
  if (EventFreeGroup* group = event_free_group(index); group != nullptr) meet(*group, index);
}

/// After the hooks there may be messages, which are issued before the rest of the operation.
EventFreeGroup* RankRun::event_free_group(int index) {
  std::optional<EventFreeGroup*>& known = event_free_groups_[index];
  if (known) return *known;
  known = nullptr;
  std::vector<const Collective*> calls;
  int hook = index + 1;
  for (; hook + 1 < count() && op(hook).within == index; hook += 2) {
    const auto* collective = std::get_if<Collective>(&op(hook).action);
    const bool simple = collective != nullptr && op(hook).exchange >= 0 && op(hook).after.empty() &&
                        !is_shift(op(hook)) && std::holds_alternative<Synchronize>(op(hook + 1).action) &&
                        op(hook + 1).after == std::vector<int>{hook};
    if (!simple) return nullptr;
    calls.push_back(collective);
  }
  for (int behind = hook; behind < count() && op(behind).stream != Stream::kCompute; ++behind)
    if (op(behind).within >= 0 || starts(behind) == Start::kInTurn) return nullptr;
  if (index_.first_queued < index || !world_.input.schedule->units.empty()) return nullptr;
  return *(known = world_.event_free_groups.group(rank_, calls));
}

void RankRun::meet(EventFreeGroup& group, int index) {
  main_.busy = true;
  parent_.time = world_.clock.now();
  const auto member = std::lower_bound(group.ranks.begin(), group.ranks.end(), rank_) - group.ranks.begin();
  group.here[member] = this;
  if (--group.missing > 0) return;
  group.missing = static_cast<int>(group.ranks.size());
  int hook = index + 1;
  for (const EventFreeGroup::Call& call : group.calls) {
    perform_call(group, call, hook);
    hook += 2;
  }
  for (RankRun* each : group.here) each->perform_rest(hook);
}

/// Performs a hook that is a collective, and the next one, which waits for its end.
void RankRun::perform_call(const EventFreeGroup& group, const EventFreeGroup::Call& call, int hook) {
  std::vector<double> times(call.parts, 0.0);  // of the beginning, then of the end
  for (std::size_t i = 0; i < group.here.size(); ++i) {
    RankRun& member = *group.here[i];
    member.perform_until(world_.costs.phases().hook_fraction(member.op(hook + 1)));
    member.now_.record.times[hook].start = member.parent_.time;
    if (!member.now_.record.causes.empty()) member.now_.record.causes[hook].issued = member.parent_.time;
    if (world_.input.compute.launch)
      member.spend(world_.input.compute.launch->collective.count(), member.parent_.time);
    double& begin = times[call.part_of[i]];
    begin = std::max(begin, member.parent_.time + call_overhead_s());
  }
  std::vector<char> called(times.size(), 0);
  for (std::size_t i = 0; i < group.here.size(); ++i) {
    RankRun& member = *group.here[i];
    const auto part = static_cast<std::size_t>(call.part_of[i]);
    const double reached = member.parent_.time;
    if (std::exchange(called[part], 1) == 0)
      times[part] = world_.event_free_groups.call(member.rank_, std::get<Collective>(member.op(hook).action),
                                                  times[part]);
    member.now_.record.times[hook].end = member.now_.record.times[hook + 1].start = member.parent_.time =
        times[part];
    member.add_credit(hook + 1, member.parent_.time - reached);
    member.pass(0.0, world_.costs.launch_s(member.op(hook + 1)), hook + 1);
    member.now_.record.times[hook + 1].end = member.parent_.time;
  }
}

void RankRun::begin_credit(int index) {
  const int pair = index_.pairs.empty() ? -1 : index_.pairs[index];
  if (pair < 0 || pair != parent_.pair) parent_.credit = 0.0;
  parent_.pair = pair;
}

void RankRun::add_credit(int hook, double waited) {
  parent_.credit += world_.costs.phases().credit_s(op(hook), waited, parent_.pair >= 0);
}

double RankRun::left_of(double seconds) {
  const double computed = std::min(seconds, parent_.credit);
  parent_.credit -= computed;
  return seconds - computed;
}

/// Performs an event-free group's operation up to a fraction of its time.
void RankRun::perform_until(double fraction) {
  const double part = fraction - parent_.done;
  if (part <= 0.0) return;
  parent_.done = fraction;
  pass(left_of(part * parent_.job.seconds), part * world_.costs.launch_s(op(parent_.op)), parent_.op);
}

void RankRun::pass(double seconds, double issue, int index) {
  parent_.time += std::max(0.0, paced(seconds, issue, parent_.time, index));
}

void RankRun::perform_rest(int end) {
  for (main_.next = end; main_.next < count() && op(main_.next).stream != Stream::kCompute;) ++main_.next;
  if (main_.next > end)
    world_.clock.at(parent_.time, [this, end, until = main_.next] {
      for (int behind = end; behind < until; ++behind) issue(behind);
      wake();
    });
  perform_until(1.0);
  world_.clock.at(parent_.time, [this, end] {
    const int index = std::exchange(parent_.op, -1);
    for (int hook = index + 1; hook < end; ++hook) now_.states[hook] = State::kDone;
    now_.open -= end - index - 1;
    finish(index);
  });
}

/// One move of the parent operation: up to the next hook, the hook, or the rest.
void RankRun::advance_parent() {
  const bool behind_hook = main_.next - 1 > parent_.op;
  while (behind_hook && main_.next < count() && op(main_.next).stream != Stream::kCompute &&
         op(main_.next).within < 0)
    issue(main_.next++);
  int hook = main_.next;  // the next hook, after operations of other streams
  while (hook < count() && op(hook).stream != Stream::kCompute && !is_shift(op(hook))) ++hook;
  if (hook == count() || op(hook).within != parent_.op) {
    if (run_piece(1.0)) return;
    finish(std::exchange(parent_.op, -1));
    return;
  }
  if (run_piece(world_.costs.phases().hook_fraction(op(hook)))) return;
  while (main_.next < hook) issue(main_.next++);
  if (is_shift(op(hook))) return issue(main_.next++);
  if (!parent_.hook_reached) parent_.hook_reached = world_.clock.now();
  if (!ready(hook)) return;
  ++main_.next;
  begin(hook);
  const double reached = *std::exchange(parent_.hook_reached, std::nullopt);
  if (const auto* wait = std::get_if<Synchronize>(&op(hook).action)) {
    if (wait->exposed) now_.record.times[hook].waited = world_.clock.now() - reached;
    add_credit(hook, world_.clock.now() - reached);
  }
  main_.busy = true;
  perform(hook);
}

/// Runs the parent up to the fraction `until` of its time. False if it has passed already.
bool RankRun::run_piece(double until) {
  if (until <= parent_.done) return false;
  Job piece = parent_.job;
  piece.seconds = left_of((until - parent_.done) * piece.seconds);
  const double issue = (until - parent_.done) * world_.costs.launch_s(op(parent_.op));
  parent_.done = until;
  main_.busy = true;
  const bool running = run_paced(piece, issue, parent_.op, [this] {
    main_.busy = false;
    wake();
  });
  if (!running) main_.busy = false;
  return running;
}

}  // namespace stepcast
