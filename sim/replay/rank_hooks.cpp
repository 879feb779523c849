#include <algorithm>
#include <utility>

#include "sim/replay/rank_run.hpp"

namespace stepcast {

/// With per-phase synchronisation the launch thread cannot run ahead into the next phase.
void RankRun::begin_phase(const Op& op) {
  const auto* compute = std::get_if<Compute>(&op.action);
  const std::optional<LaunchThread>& launch = world_.input.compute.launch;
  if (!launch || launch->waits != HostWaits::kPhase || compute == nullptr) return;
  const std::pair now{compute->phase, micro_batch_of(op)};
  if (std::exchange(launches_.phase, now) != now)
    launches_.busy_until = std::max(launches_.busy_until, world_.clock.now());
}

bool RankRun::run_paced(const Job& job, double issue, int index, const Callback& ended) {
  if (!world_.input.compute.launch) return run_job(job, ended);
  const double now = world_.clock.now();
  spend(issue, now);
  const double earliest = now + (launches_.busy_until - now);
  const auto wait = [this, index, ended, earliest] {
    const double late = earliest - world_.clock.now();
    if (late <= 0.0) return ended();
    now_.times[index].host += late;
    world_.clock.at(earliest, ended);
  };
  if (run_job(job, wait)) return true;
  if (earliest <= now) return false;
  wait();
  return true;
}

/// Calls all-gathers of the next unit's parameters and copies of its shard from the host, which depend on
/// nothing that is computed, but follow what was called before.
void RankRun::call_ahead() {
  if (!world_.input.compute.launch) return;
  for (int i = index_.callable[main_.next]; i >= 0; i = index_.callable[i + 1]) {
    if (now_.called_early[i] != 0 || std::ranges::any_of(op(i).after, [&](int before) {
          return now_.called_early[before] == 0 && now_.states[before] == State::kIdle;
        }))
      continue;
    issue(i);
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
    const double waited = world_.clock.now() - reached;
    if (wait->exposed) now_.times[hook].waited = waited;
    const double computed = world_.costs.phases().credit_s(op(hook), waited, parent_.pair >= 0);
    parent_.credit += computed;
    if (computed > 0.0 && !wait->exposed) now_.times[op(hook).after.front()].beside = computed;
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
