#include "sim/replay/rank_run.hpp"

#include <algorithm>

#include "core/overloaded.hpp"

namespace stepcast {
RankRun::RankRun(ReplayWorld& world, int rank)
    : world_(world),
      rank_(rank),
      program_(world.input.schedule->program(rank)),
      followers_(program_.ops.size()) {
  for (const Op& each : program_.ops) starts_.push_back(operation_of(each).start);
  for (std::size_t i = 0; i < program_.ops.size(); ++i)
    if (starts_[i] != Start::kInTurn)
      for (const int before : program_.ops[i].after) followers_[before].push_back(static_cast<int>(i));
  step_ends_.reserve(static_cast<std::size_t>(total_steps()));
  places_ = world.costs.places(rank);
  follows_ = StepTimes::followers(program_);
  teams_.resize(program_.ops.size());
  first_queued_ = static_cast<int>(std::find_if(program_.ops.begin(), program_.ops.end(),
                                                [](const Op& op) {
                                                  return op.stream != Stream::kCompute && op.exchange < 0 &&
                                                         operation_of(op).start == Start::kInTurn;
                                                }) -
                                   program_.ops.begin());
}

RankRun::Queue& RankRun::queue_of(const Op& op) {
  const auto* collective = std::get_if<Collective>(&op.action);
  const bool by_group = collective != nullptr && world_.collectives.stream_per_group();
  const auto [found, is_new] = queues_.try_emplace({op.stream, by_group ? collective->group : -1});
  if (is_new && !by_group && op.stream == Stream::kComm && world_.input.calibration != nullptr)
    found->second.limit = std::max(1, world_.input.calibration->collectives_in_flight);
  return found->second;
}

void RankRun::start() {
  begin_step();
  wake();
}

bool RankRun::ready(int index) const {
  const Op& which = op(index);
  return std::all_of(which.after.begin(), which.after.end(),
                     [&](int before) { return before == which.within || states_[before] == State::kDone; });
}

double RankRun::place(int micro_batch) const {
  const auto step = static_cast<std::size_t>(step_);
  const auto micro_batches = static_cast<std::size_t>(world_.input.schedule->micro_batches);
  return places_[step * micro_batches + static_cast<std::size_t>(micro_batch)];
}

Job RankRun::job(int index) const {
  return world_.costs.job(op(index), rank_, place(micro_batch_of(op(index))), follows_[index] != 0);
}

/// Hooks follow their operation with nothing but other streams' operations between.
bool RankRun::has_hooks(int index) const {
  for (std::size_t i = static_cast<std::size_t>(index) + 1; i < program_.ops.size(); ++i) {
    if (program_.ops[i].within == index) return true;
    if (program_.ops[i].stream == Stream::kCompute) return false;
  }
  return false;
}

void RankRun::spend(double seconds, double now) {
  issued_until_ = std::max(issued_until_, now - world_.input.ahead.count()) + seconds;
}

/// A host that waits by phase is not ahead where another begins.
void RankRun::begin_phase(const Op& op) {
  const auto* compute = std::get_if<Compute>(&op.action);
  if (!world_.input.waits_by_phase || compute == nullptr) return;
  const std::pair now{compute->phase, micro_batch_of(op)};
  if (std::exchange(phase_, now) != now) issued_until_ = std::max(issued_until_, world_.clock.now());
}

double RankRun::paced(double seconds, double issue, double now, int index) {
  if (world_.input.issue == nullptr) return seconds;
  spend(issue, now);
  const double late = issued_until_ - now - seconds;
  if (late <= 0.0) return seconds;
  if (!now_causes_.empty()) now_causes_[index].host += late;
  return issued_until_ - now;
}

bool RankRun::run_paced(const Job& job, double issue, int index, const Callback& ended) {
  if (world_.input.issue == nullptr) return run_job(job, ended);
  const double now = world_.clock.now();
  spend(issue, now);
  const double earliest = now + (issued_until_ - now);
  const auto wait = [this, index, ended, earliest] {
    const double late = earliest - world_.clock.now();
    if (late <= 0.0) return ended();
    if (!now_causes_.empty()) now_causes_[index].host += late;
    world_.clock.at(earliest, ended);
  };
  if (run_job(job, wait)) return true;
  if (earliest <= now) return false;
  wait();
  return true;
}

/// The parameters of the next unit depend on nothing that is computed.
void RankRun::call_ahead() {
  if (world_.input.issue == nullptr) return;
  for (std::size_t i = static_cast<std::size_t>(next_); i < program_.ops.size(); ++i) {
    const Op& each = program_.ops[i];
    if (std::holds_alternative<Compute>(each.action)) return;
    const auto* collective = std::get_if<Collective>(&each.action);
    if (collective == nullptr || ahead_[i] != 0 || !each.after.empty() ||
        collective->kind != CollectiveKind::kAllGather ||
        !std::holds_alternative<UnitParameters>(collective->payload))
      continue;
    issue(static_cast<int>(i));
    ahead_[i] = 1;
  }
}

void RankRun::begin_step() {
  issued_until_ = std::max(issued_until_, world_.clock.now());
  ahead_.assign(program_.ops.size(), 0);
  states_.assign(program_.ops.size(), State::kIdle);
  now_dates_.assign(program_.ops.size(), {});
  if (world_.input.recording != nullptr) now_causes_.assign(program_.ops.size(), {});
  issued_.assign(program_.ops.size(), 0);
  open_ops_ = static_cast<int>(program_.ops.size());
  next_ = 0;
}

void RankRun::end_step() {
  closing_ = false;
  main_busy_ = false;
  step_ends_.push_back(world_.clock.now());
  if (const int measured = step_ - world_.input.warmup_steps;
      measured >= first_recorded() && measured < world_.recorded_steps) {
    recorded_.push_back(now_dates_);
    if (!now_causes_.empty()) recorded_causes_.push_back(now_causes_);
  }
  if (++step_ < total_steps()) begin_step();
}

/// Lets everything go on that can. Operations that take no time end inside, which is why it loops instead of
/// nesting.
void RankRun::wake() {
  wake_again_ = true;
  if (waking_) return;
  waking_ = true;
  while (std::exchange(wake_again_, false)) {
    if (finished()) break;
    advance_main();
    for (auto& [stream, one] : queues_) advance_queue(one);
    start_due();
    if (open_ops_ > 0 || closing_ || finished()) continue;
    closing_ = main_busy_ = true;
    if (!run_job(world_.costs.rest_of_step(rank_, place(0)), [this] {
          end_step();
          wake();
        }))
      end_step();
    wake_again_ = true;
  }
  waking_ = false;
}

void RankRun::advance_main() {
  const auto count = static_cast<int>(program_.ops.size());
  while (!main_busy_) {
    if (host_ >= 0) {
      const int before = next_;
      advance_host();
      if (host_ >= 0 && !main_busy_ && next_ == before) return;  // a hook waits
      continue;
    }
    if (next_ == count) return;
    const int index = next_;
    if (starts(index) == Start::kLaunched) {
      if (!launch_copy(index)) return;
      continue;
    }
    if (op(index).stream != Stream::kCompute) {
      ++next_;
      issue(index);
      continue;
    }
    if (!ready(index)) return;
    ++next_;
    begin(index);
    if (has_hooks(index)) {
      host_ = index;
      host_job_ = job(index);
      host_done_ = 0.0;
      begin_phase(op(index));
      call_ahead();
      if (Team* team = team_of(index); team != nullptr) return meet(*team, index);
      continue;
    }
    main_busy_ = true;
    begin_phase(op(index));
    call_ahead();
    perform(index);
  }
}

/// Behind the hooks there may be messages, which are issued before the rest of the operation.
Team* RankRun::team_of(int index) {
  std::optional<Team*>& known = teams_[index];
  if (known) return *known;
  known = nullptr;
  const auto count = static_cast<int>(program_.ops.size());
  std::vector<const Collective*> calls;
  int hook = index + 1;
  for (; hook + 1 < count && op(hook).within == index; hook += 2) {
    const auto* collective = std::get_if<Collective>(&op(hook).action);
    const bool simple = collective != nullptr && op(hook).exchange >= 0 && op(hook).after.empty() &&
                        !is_shift(op(hook)) && std::holds_alternative<Synchronize>(op(hook + 1).action) &&
                        op(hook + 1).after == std::vector<int>{hook};
    if (!simple) return nullptr;
    calls.push_back(collective);
  }
  for (int behind = hook; behind < count && op(behind).stream != Stream::kCompute; ++behind)
    if (op(behind).within >= 0 || starts(behind) == Start::kInTurn) return nullptr;
  if (first_queued_ < index || !world_.input.schedule->units.empty()) return nullptr;
  return *(known = world_.teams.team(rank_, calls));
}

void RankRun::meet(Team& team, int index) {
  main_busy_ = true;
  host_date_ = world_.clock.now();
  const auto member = std::lower_bound(team.ranks.begin(), team.ranks.end(), rank_) - team.ranks.begin();
  team.here[static_cast<std::size_t>(member)] = this;
  if (--team.missing > 0) return;
  team.missing = static_cast<int>(team.ranks.size());
  int hook = index + 1;
  for (const Team::Call& call : team.calls) {
    perform_call(team, call, hook);
    hook += 2;
  }
  for (RankRun* each : team.here) each->perform_rest(hook);
}

/// A hook that is a collective, and the one behind it that waits for its end.
void RankRun::perform_call(const Team& team, const Team::Call& call, int hook) {
  std::vector<double> dates(static_cast<std::size_t>(call.parts),
                            0.0);  // where it begins, then where it ends
  for (std::size_t i = 0; i < team.here.size(); ++i) {
    RankRun& member = *team.here[i];
    member.perform_until(world_.costs.hook_fraction(member.op(hook + 1)));
    member.now_dates_[hook].start = member.host_date_;
    if (!member.now_causes_.empty()) member.now_causes_[hook].issued = member.host_date_;
    if (world_.input.issue != nullptr) member.spend(world_.input.call_issue.count(), member.host_date_);
    double& begin = dates[static_cast<std::size_t>(call.part_of[i])];
    begin = std::max(begin, member.host_date_ + call_overhead_s());
  }
  std::vector<char> called(dates.size(), 0);
  for (std::size_t i = 0; i < team.here.size(); ++i) {
    RankRun& member = *team.here[i];
    const auto part = static_cast<std::size_t>(call.part_of[i]);
    if (std::exchange(called[part], 1) == 0)
      dates[part] =
          world_.teams.call(member.rank_, std::get<Collective>(member.op(hook).action), dates[part]);
    member.now_dates_[hook].end = member.now_dates_[hook + 1].start = member.host_date_ = dates[part];
    member.pass(0.0, world_.costs.issue_s(member.op(hook + 1)), hook + 1);
    member.now_dates_[hook + 1].end = member.host_date_;
  }
}

/// So much of the operation of a team.
void RankRun::perform_until(double fraction) {
  const double part = fraction - host_done_;
  if (part <= 0.0) return;
  host_done_ = fraction;
  pass(part * host_job_.seconds, part * world_.costs.issue_s(op(host_)), host_);
}

void RankRun::pass(double seconds, double issue, int index) {
  host_date_ += std::max(0.0, paced(seconds, issue, host_date_, index));
}

void RankRun::perform_rest(int end) {
  const auto count = static_cast<int>(program_.ops.size());
  for (next_ = end; next_ < count && op(next_).stream != Stream::kCompute;) ++next_;
  if (next_ > end)
    world_.clock.at(host_date_, [this, end, until = next_] {
      for (int behind = end; behind < until; ++behind) issue(behind);
      wake();
    });
  perform_until(1.0);
  world_.clock.at(host_date_, [this, end] {
    const int index = std::exchange(host_, -1);
    for (int hook = index + 1; hook < end; ++hook) states_[hook] = State::kDone;
    open_ops_ -= end - index - 1;
    finish(index);
  });
}

/// One move of the operation that has hooks: up to the next hook, the hook, or the rest.
void RankRun::advance_host() {
  const auto count = static_cast<int>(program_.ops.size());
  const bool behind_hook = next_ - 1 > host_;
  while (behind_hook && next_ < count && op(next_).stream != Stream::kCompute && op(next_).within < 0)
    issue(next_++);
  int hook = next_;  // the next hook, behind operations of other streams
  while (hook < count && op(hook).stream != Stream::kCompute && !is_shift(op(hook))) ++hook;
  if (hook == count || op(hook).within != host_) {
    if (run_piece(1.0)) return;
    finish(std::exchange(host_, -1));
    return;
  }
  if (run_piece(world_.costs.hook_fraction(op(hook)))) return;
  while (next_ < hook) issue(next_++);
  if (is_shift(op(hook))) return issue(next_++);
  if (!hook_reached_) hook_reached_ = world_.clock.now();
  if (!ready(hook)) return;
  ++next_;
  begin(hook);
  const double reached = *std::exchange(hook_reached_, std::nullopt);
  if (const auto* wait = std::get_if<Synchronize>(&op(hook).action); wait != nullptr && wait->exposed)
    now_dates_[hook].waited = world_.clock.now() - reached;
  main_busy_ = true;
  perform(hook);
}

/// Runs the host of hooks up to the fraction `until` of its time. False when that is reached already.
bool RankRun::run_piece(double until) {
  if (until <= host_done_) return false;
  Job piece = host_job_;
  piece.seconds *= until - host_done_;
  const double issue = (until - host_done_) * world_.costs.issue_s(op(host_));
  host_done_ = until;
  main_busy_ = true;
  const bool running = run_paced(piece, issue, host_, [this] {
    main_busy_ = false;
    wake();
  });
  if (!running) main_busy_ = false;
  return running;
}

void RankRun::issue(int index) {
  if (ahead_[index] != 0) return;
  if (!now_causes_.empty()) now_causes_[index].issued = world_.clock.now();
  if (starts(index) == Start::kInTurn) {
    queue_of(op(index)).issued.push_back(index);
  } else {
    issued_[index] = 1;
    if (ready(index)) due_.push_back(index);
  }
  wake_again_ = true;
}

/// False when it is staged and what it comes after is not done: the main thread waits.
bool RankRun::launch_copy(int index) {
  const bool staged = std::get<Copy>(op(index).action).staged();
  if (staged && !ready(index)) return false;
  ++next_;
  main_busy_ = true;
  world_.clock.at(world_.clock.now() + world_.copies.launch_s(rank_), [this, index, staged] {
    if (staged)
      staging_ = index;
    else
      main_busy_ = false;
    issue(index);
    wake();
  });
  return true;
}

void RankRun::advance_queue(Queue& one) {
  while (!one.issued.empty() && one.under_way < one.limit && ready(one.issued.front())) {
    const int index = one.issued.front();
    one.issued.pop_front();
    ++one.under_way;
    begin(index);
    perform(index);
  }
}

/// Starts the messages and copies that have become ready, in program order.
void RankRun::start_due() {
  std::vector<int> due = std::exchange(due_, {});
  std::sort(due.begin(), due.end());
  for (const int index : due) {
    if (states_[index] != State::kIdle) continue;
    begin(index);
    perform(index);
  }
}

void RankRun::begin(int index) {
  states_[index] = State::kStarted;
  now_dates_[index].start = world_.clock.now();
  if (op(index).stream != Stream::kCompute) return;
  for (const int before : op(index).after)  // its host has waited for these
    if (std::holds_alternative<Recv>(op(before).action))
      issued_until_ = std::max(issued_until_, now_dates_[before].end);
}

bool RankRun::run_job(const Job& job, Callback ended) {
  if (job.seconds <= 0.0) return false;
  world_.processors.run(world_.input.node_of_rank[rank_], job, std::move(ended));
  return true;
}

void RankRun::perform(int index) {
  const auto done = [this, index] { finish(index); };
  std::visit(Overloaded{
                 [&](const Collective& collective) { perform_collective(index, collective); },
                 [&](const Send& send) {
                   world_.point_to_point.post(true, rank_, rank_ + send.offset, send.tag,
                                              send.message.count(), done);
                 },
                 [&](const Recv& recv) {
                   world_.point_to_point.post(false, rank_ + recv.offset, rank_, recv.tag,
                                              recv.message.count(), done);
                 },
                 [&](const Copy& copy) { world_.copies.start(rank_, copy, done); },
                 [&](const OneOf<LoadInput, Compute, CopyIn, CopyOut, Combine, ScaleUnit, UnitMemory,
                                 UpdateUnit, Synchronize> auto&) {
                   if (!run_paced(job(index), world_.costs.issue_s(op(index)), index, done)) finish(index);
                 },
             },
             op(index).action);
}

double RankRun::call_overhead_s() const {
  return world_.input.calibration == nullptr ? 0.0 : world_.input.calibration->call_overhead_s;
}

/// Handing the call to the communication thread and back costs `call_overhead` once, before the rank takes
/// part.
void RankRun::perform_collective(int index, const Collective& collective) {
  const auto join = [this, index, &collective] {
    world_.collectives.join(rank_, collective, [this, index] { finish(index); });
  };
  if (world_.input.issue != nullptr) spend(world_.input.call_issue.count(), world_.clock.now());
  if (const double overhead = call_overhead_s(); overhead > 0.0)
    world_.clock.at(world_.clock.now() + overhead, join);
  else
    join();
}

void RankRun::finish(int index) {
  states_[index] = State::kDone;
  now_dates_[index].end = world_.clock.now();
  --open_ops_;
  if (op(index).stream == Stream::kCompute || index == staging_)
    main_busy_ = false;
  else if (starts(index) == Start::kInTurn)
    --queue_of(op(index)).under_way;
  if (index == staging_) staging_ = -1;
  for (const int follower : followers_[index])
    if (issued_[follower] != 0 && ready(follower)) due_.push_back(follower);
  wake();
}

/// Whose part an operation under way lacks.
std::string RankRun::partner(const Op& which) const {
  return std::visit(
      Overloaded{
          [&](const Collective& collective) {
            const Schedule& schedule = *world_.input.schedule;
            return "the other ranks of group " +
                   schedule.groups[schedule.group_index(collective.group, rank_)].name;
          },
          [&](const Send& send) { return "a receive on rank " + std::to_string(rank_ + send.offset); },
          [&](const Recv& recv) { return "a send from rank " + std::to_string(rank_ + recv.offset); },
          [](const auto&) { return std::string("its end"); },
      },
      which.action);
}

std::vector<std::string> RankRun::waiting() const {
  std::vector<std::string> lines;
  const auto add = [&](const Op& which, const std::string& what) {
    lines.push_back("rank " + std::to_string(rank_) + ": " + which.name + " waits for " + what);
  };
  for (int i = 0; i < static_cast<int>(program_.ops.size()); ++i) {
    if (states_[i] == State::kStarted && i != host_) add(op(i), partner(op(i)));
    if (states_[i] != State::kIdle || i != next_) continue;
    for (const int before : op(i).after)
      if (states_[before] != State::kDone) add(op(i), op(before).name);
  }
  for (const auto& [stream, one] : queues_)
    if (!one.issued.empty() && ready(one.issued.front()))
      add(op(one.issued.front()), "its turn in the stream");
  return lines;
}

}  // namespace stepcast
