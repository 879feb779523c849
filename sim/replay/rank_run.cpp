#include "sim/replay/rank_run.hpp"

#include <algorithm>
#include <utility>

#include "core/overloaded.hpp"

namespace stepcast {

namespace {

/// Pairs neighbouring runs of a forward and a backward of two micro-batches.
std::vector<int> pairs_of(const Program& program) {
  std::vector<int> pairs(program.ops.size(), -1);
  struct Run {
    bool backward = false;
    int micro_batch = -1;
    int pair = -1;
  };
  std::vector<int> run_of(program.ops.size(), -1);
  std::vector<Run> runs;
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    const auto* compute = std::get_if<Compute>(&program.ops[i].action);
    if (compute == nullptr || compute->segment < 0) continue;
    const bool backward = is_backward(compute->phase) || compute->phase == Phase::kRecompute;
    if (runs.empty() || runs.back().backward != backward || runs.back().micro_batch != compute->micro_batch)
      runs.push_back({backward, compute->micro_batch, -1});
    run_of[i] = static_cast<int>(runs.size()) - 1;
  }
  for (std::size_t i = 0; i + 1 < runs.size(); ++i)
    if (runs[i].pair < 0 && runs[i].backward != runs[i + 1].backward &&
        runs[i].micro_batch != runs[i + 1].micro_batch)
      runs[i].pair = runs[i + 1].pair = static_cast<int>(i);
  for (std::size_t i = 0; i < pairs.size(); ++i)
    if (run_of[i] >= 0) pairs[i] = runs[run_of[i]].pair;
  return pairs;
}

/// All-gathers of FSDP's units, and copies that do not occupy the main thread.
bool is_callable_ahead(const Op& op) {
  if (const auto* copy = std::get_if<Copy>(&op.action)) return !copy->staged();
  const auto* collective = std::get_if<Collective>(&op.action);
  return collective != nullptr && collective->kind == CollectiveKind::kAllGather &&
         std::holds_alternative<UnitParameters>(collective->payload);
}

}  // namespace

ProgramIndex::ProgramIndex(const Program& which, bool overlaps)
    : program(which),
      follows(stepcast::followers(which)),
      followers(which.ops.size()),
      callable(which.ops.size() + 1, -1) {
  if (overlaps) pairs = pairs_of(which);
  const std::vector<Op>& ops = which.ops;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    starts.push_back(operation_of(ops[i]).start);
    if (starts[i] != Start::kInTurn)
      for (const int before : ops[i].after) followers[before].push_back(static_cast<int>(i));
  }
  for (std::size_t i = ops.size(); i-- > 0;)
    callable[i] = is_callable_ahead(ops[i])                        ? static_cast<int>(i)
                  : std::holds_alternative<Compute>(ops[i].action) ? -1
                                                                   : callable[i + 1];
}

RankRun::RankRun(const ReplayWorld& world, const ProgramIndex& index, int rank)
    : world_(world), rank_(rank), index_(index), quantiles_(world.costs.sample_quantiles(rank)) {
  step_ends_.reserve(total_steps());
}

void RankRun::begin_step() {
  const std::optional<LaunchThread>& launch = world_.input.compute.launch;
  if (!launch || launch->waits != HostWaits::kNever)
    launches_.busy_until = std::max(launches_.busy_until, world_.clock.now());
  now_.called_early.assign(index_.program.ops.size(), 0);
  now_.states.assign(index_.program.ops.size(), State::kIdle);
  now_.times.assign(index_.program.ops.size(), {});
  now_.issued.assign(index_.program.ops.size(), 0);
  now_.open = count();
  main_.next = 0;
}

void RankRun::end_step() {
  main_.closing = false;
  main_.busy = false;
  step_ends_.push_back(world_.clock.now());
  if (const int measured = step_ - world_.input.run.warmup_steps;
      measured >= first_recorded() && measured < world_.recorded_steps)
    recorded_.push_back(std::exchange(now_.times, {}));
  if (++step_ < total_steps()) begin_step();
}

/// Advances everything that can go on. Operations that take no time end inside, hence the loop instead of
/// recursion.
void RankRun::wake() {
  main_.wake_again = true;
  if (main_.waking) return;
  main_.waking = true;
  while (std::exchange(main_.wake_again, false)) {
    if (finished()) break;
    advance_main();
    for (auto& [stream, one] : queues_) advance_queue(one);
    start_due();
    if (now_.open > 0 || main_.closing || finished()) continue;
    main_.closing = main_.busy = true;
    if (!run_job(world_.costs.rest_of_step(rank_, sample_quantile(0)), [this] {
          end_step();
          wake();
        }))
      end_step();
    main_.wake_again = true;
  }
  main_.waking = false;
}

void RankRun::advance_main() {
  while (!main_.busy) {
    if (parent_.op >= 0) {
      const int before = main_.next;
      advance_parent();
      if (parent_.op >= 0 && !main_.busy && main_.next == before) return;  // a hook waits
      continue;
    }
    if (main_.next == count()) return;
    const int index = main_.next;
    if (starts(index) == Start::kLaunched && !is_launched_ahead(index)) {
      if (!launch_copy(index)) return;
      continue;
    }
    if (op(index).stream != Stream::kCompute) {
      ++main_.next;
      issue(index);
      continue;
    }
    if (!ready(index)) return;
    ++main_.next;
    begin(index);
    if (has_hooks(index)) {
      begin_parent(index);
      continue;
    }
    main_.busy = true;
    begin_credit(index);
    begin_phase(op(index));
    call_ahead();
    perform(index);
  }
}

void RankRun::issue(int index) {
  if (now_.called_early[index] != 0) return;
  if (is_launched_ahead(index)) spend(world_.copies.launch_s(rank_), world_.clock.now());
  now_.times[index].issued = world_.clock.now();
  if (starts(index) == Start::kInTurn) {
    queue_of(op(index)).issued.push_back(index);
  } else {
    now_.issued[index] = 1;
    if (ready(index)) now_.due.push_back(index);
  }
  main_.wake_again = true;
}

/// False if it is staged and waits for what it comes after: so does the main thread.
bool RankRun::launch_copy(int index) {
  const bool staged = std::get<Copy>(op(index).action).staged();
  if (staged && !ready(index)) return false;
  ++main_.next;
  main_.busy = true;
  world_.clock.at(world_.clock.now() + world_.copies.launch_s(rank_), [this, index, staged] {
    if (staged)
      main_.staging = index;
    else
      main_.busy = false;
    issue(index);
    wake();
  });
  return true;
}

/// Starts the messages and copies that became ready, in program order.
void RankRun::start_due() {
  std::vector<int> due = std::exchange(now_.due, {});
  std::ranges::sort(due);
  for (const int index : due) {
    if (now_.states[index] != State::kIdle) continue;
    begin(index);
    perform(index);
  }
}

void RankRun::begin(int index) {
  now_.states[index] = State::kStarted;
  now_.times[index].start = world_.clock.now();
  if (op(index).stream != Stream::kCompute) return;
  for (const int before : op(index).after)  // the launch thread has waited for these
    if (std::holds_alternative<Recv>(op(before).action))
      launches_.busy_until = std::max(launches_.busy_until, now_.times[before].end);
}

void RankRun::perform(int index) {
  const auto done = [this, index] { finish(index); };
  std::visit(Overloaded{
                 [&](const Collective& collective) { perform_collective(index, collective); },
                 [&](const Send& send) {
                   world_.point_to_point.post({true, rank_, rank_ + send.offset, send.message.count(), done},
                                              send.tag);
                 },
                 [&](const Recv& recv) {
                   world_.point_to_point.post({false, rank_ + recv.offset, rank_, recv.message.count(), done},
                                              recv.tag);
                 },
                 [&](const Copy& copy) { world_.copies.start(rank_, copy, done); },
                 [&](const OneOf<LoadInput, Compute, CopyIn, CopyOut, Combine, ScaleUnit, UnitMemory,
                                 UpdateUnit, Synchronize> auto&) {
                   Job one = job(index);
                   if (parent_.pair >= 0 && op(index).within < 0) one.seconds = left_of(one.seconds);
                   if (!run_paced(one, world_.costs.launch_s(op(index)), index, done)) finish(index);
                 },
             },
             op(index).action);
}

/// Submitting the call to the communication thread and returning costs `call_overhead` once, before the rank
/// takes part.
void RankRun::perform_collective(int index, const Collective& collective) {
  const auto join = [this, index, &collective] {
    world_.collectives.join(rank_, collective, [this, index] { finish(index); });
  };
  const auto& launch = world_.input.compute.launch;
  const bool captured = world_.input.model->execution.graph == "full" &&
                        std::holds_alternative<ExchangeArray>(collective.payload);
  if (launch && !captured) spend(launch->collective.count(), world_.clock.now());
  if (const Calibration* costs = world_.input.calibration; costs != nullptr && costs->call_overhead_s > 0.0)
    world_.clock.at(world_.clock.now() + costs->call_overhead_s, join);
  else
    join();
}

void RankRun::finish(int index) {
  now_.states[index] = State::kDone;
  now_.times[index].end = world_.clock.now();
  --now_.open;
  if (op(index).stream == Stream::kCompute || index == main_.staging)
    main_.busy = false;
  else if (starts(index) == Start::kInTurn)
    --queue_of(op(index)).in_progress;
  if (index == main_.staging) main_.staging = -1;
  for (const int follower : index_.followers[index])
    if (now_.issued[follower] != 0 && ready(follower)) now_.due.push_back(follower);
  wake();
}

/// Describes what an operation in progress waits for.
std::string RankRun::partner(const Op& which) const {
  return std::visit(
      Overloaded{
          [&](const Collective& collective) {
            const Schedule& schedule = *world_.input.schedule;
            return "the other ranks of group " +
                   schedule.groups[schedule.group_index(collective.group, rank_)].name;
          },
          [&](const Send& send) { return fmt::format("a receive on rank {}", rank_ + send.offset); },
          [&](const Recv& recv) { return fmt::format("a send from rank {}", rank_ + recv.offset); },
          [](const auto&) { return std::string("its end"); },
      },
      which.action);
}

std::vector<std::string> RankRun::waiting() const {
  std::vector<std::string> lines;
  const auto add = [&](const Op& which, const std::string& what) {
    lines.push_back("rank " + std::to_string(rank_) + ": " + which.name + " waits for " + what);
  };
  for (int i = 0; i < count(); ++i) {
    if (now_.states[i] == State::kStarted && i != parent_.op) add(op(i), partner(op(i)));
    if (now_.states[i] != State::kIdle || i != main_.next) continue;
    for (const int before : op(i).after)
      if (now_.states[before] != State::kDone) add(op(i), op(before).name);
  }
  for (const auto& [stream, one] : queues_)
    if (!one.issued.empty() && ready(one.issued.front()))
      add(op(one.issued.front()), "its turn in the stream");
  return lines;
}

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
