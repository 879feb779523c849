#include "runner/execute/program_runner.hpp"

#include <algorithm>
#include <cassert>
#include <chrono>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>

#include "core/clocks.hpp"
#include "core/error.hpp"
#include "runner/execute/memory_account.hpp"

namespace stepcast {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

ProgramRunner::ProgramRunner(const Schedule& schedule, Backend& backend, DeviceStream* device)
    : schedule_(schedule),
      program_(schedule.program(backend.rank())),
      backend_(backend),
      device_(device),
      stamps_(program_.ops.size()),
      events_(program_.ops.size()) {
  for (const Group& group : schedule.groups) {
    const bool everybody = static_cast<int>(group.ranks.size()) == backend.world_size();
    const bool member = std::ranges::find(group.ranks, backend.rank()) != group.ranks.end();
    subgroups_.push_back(everybody || !member ? nullptr : backend.subgroup(group.name, group.ranks));
  }
}

void ProgramRunner::no_array() { throw std::logic_error("this program has no arrays for collectives"); }

Backend& ProgramRunner::backend_of(int group) {
  const int index = schedule_.group_index(group, backend_.rank());
  const std::unique_ptr<Backend>& subgroup = subgroups_.at(index);
  return subgroup != nullptr ? *subgroup : backend_;
}

ProgramRunner::Launch ProgramRunner::launch_of(const Collective& collective) {
  Backend& group = backend_of(collective.group);
  const bool gathers = collective.kind == CollectiveKind::kGather && group.rank() == collective.root;
  const auto call = [&group, collective](const std::pair<Array, Array>& on) {
    return issue(group, collective, on.first, on.second);
  };
  const auto require = [&](std::initializer_list<CollectiveKind> kinds, const char* what) {
    if (std::ranges::find(kinds, collective.kind) == kinds.end())
      throw CapabilityError("strategy '" + schedule_.strategy + "': " + to_text(collective.kind) + " of " +
                            what + " is predicted, not executed");
  };
  return std::visit(
      Overloaded{
          [&](const OneOf<GradientArray, BucketArray, BufferArray> auto& payload) -> Launch {
            require({CollectiveKind::kAllReduce, CollectiveKind::kBroadcast, CollectiveKind::kGather,
                     CollectiveKind::kScatter},
                    "a single tensor");
            std::pair<Array, Array> on{array(payload), {}};
            if constexpr (requires { payload.tensor; })
              if (gathers) on.second = contributions(payload.tensor, group.world_size());
            return [call, on] { return call(on); };
          },
          [&](const OneOf<UnitParameters, UnitGradients> auto& payload) -> Launch {
            require({CollectiveKind::kAllGather, CollectiveKind::kReduceScatter, CollectiveKind::kAllReduce},
                    "an FSDP unit");
            return [this, call, payload, kind = collective.kind] { return call(arrays_of(payload, kind)); };
          },
          [&](const ExchangeArray& which) -> Launch {
            return [this, call, which] { return call(exchange(which.exchange)); };
          },
      },
      collective.payload);
}

/// Input and output of a collective of an FSDP unit, allocated and converted as it needs them.
template <class UnitPayload>
std::pair<Array, Array> ProgramRunner::arrays_of(const UnitPayload& payload, CollectiveKind kind) {
  if (kind == CollectiveKind::kAllGather) take_parameters(payload.unit);
  if constexpr (std::is_same_v<UnitPayload, UnitGradients>) {
    if (kind == CollectiveKind::kReduceScatter) convert_gradients(payload.unit);
    if (kind == CollectiveKind::kReduceScatter && payload.incoming) take_incoming(payload.unit);
    const UnitArrays on = unit(payload.unit);
    const Array shard = payload.incoming ? on.incoming_shard : on.gradient_shard;
    if (kind == CollectiveKind::kReduceScatter) return {on.gradients, shard};
    return {payload.shard ? shard : on.gradients, {}};
  } else {
    const UnitArrays on = unit(payload.unit);
    return {on.parameter_shard, on.parameters};
  }
}

/// Submits a collective. \param out unused if it works in place
WorkPtr ProgramRunner::issue(Backend& group, const Collective& collective, Array in, Array out) {
  const int root = collective.root;
  switch (collective.kind) {
    case CollectiveKind::kAllReduce: {
      const auto* of_layers = std::get_if<ExchangeArray>(&collective.payload);
      return of_layers != nullptr && of_layers->maximum ? group.all_reduce_maximum(in) : group.all_reduce(in);
    }
    case CollectiveKind::kBroadcast:
      return group.broadcast(in, root);
    case CollectiveKind::kGather:
      return group.gather(in, out, root);
    case CollectiveKind::kScatter: {
      std::vector<Array> parts;
      if (group.rank() == root) parts.assign(group.world_size(), in);
      return group.scatter(std::move(parts), in, root);
    }
    case CollectiveKind::kAllGather:
      return group.all_gather(in, out);
    case CollectiveKind::kReduceScatter:
      return group.reduce_scatter(in, out);
    case CollectiveKind::kAllToAll:
      return group.all_to_all(in, out);
    case CollectiveKind::kShift:
      break;
  }
  return group.shift(in, out);
}

void ProgramRunner::add(std::size_t index, CompiledOp compiled) {
  const Op& op = program_.ops[index];
  const bool collective = std::holds_alternative<Collective>(op.action);
  Step step;
  step.op = std::move(compiled);
  for (const int earlier : op.after) {
    step.after.push_back(static_cast<std::size_t>(earlier));
    if (program_.ops[earlier].stream != Stream::kCompute) step.wait_for.push_back(earlier);
  }
  // A collective is submitted after the calling thread has reached its place in the program.
  for (std::size_t i = index; collective && i-- > 0;)
    if (program_.ops[i].stream == Stream::kCompute) {
      step.after.push_back(i);
      break;
    }
  step.posted = operation_of(op).start != Start::kInTurn;
  step.stamps_wait = std::holds_alternative<Synchronize>(op.action);
  step.within = op.within;
  step.on_demand = collective && op.exchange >= 0;
  step.memory = operation_of(op).workspace;
  if (collective) {
    collectives_.push_back(index);
    if (is_shift(op)) collective_hooks_[op.exchange].push_back(index);
  } else if (op.exchange >= 0) {
    collective_hooks_[op.exchange].push_back(index);
  } else if (op.within >= 0) {
    hooks_[op.ready_tensor].push_back(index);
  } else {
    inline_.push_back(index);
    if (step.posted) posted_.push_back(index);
  }
  steps_.push_back(std::move(step));
}

void ProgramRunner::prepare() {
  if (device_ == nullptr) return;
  device_->restart();
  backend_.restart_clock();
}

void ProgramRunner::settle() {
  if (device_ == nullptr) return;
  device_->drain();
  for (std::size_t i = 0; i < steps_.size(); ++i)
    if (steps_[i].op.run)
      stamps_[i] = {device_->time_of(events_[i].first), device_->time_of(events_[i].second)};
}

const std::vector<Stamp>& ProgramRunner::step() {
  if (device_ != nullptr) latest_event_ = device_->record_event();
  for (Step& step : steps_) step.done = false;
  launched_ = 0;
  computing_ = {};
  if (threads_) computed_ = now();
  for (const std::size_t index : inline_) steps_[index].posted ? post(index) : run_inline(index);
  for (const std::vector<std::size_t>* all : {&collectives_, &posted_})
    for (const std::size_t index : *all) finish(index);
  for (const std::vector<std::size_t>* all : {&collectives_, &posted_})
    for (const std::size_t index : *all) {
      Step& step = steps_[index];
      if (device_ != nullptr) step.work->wait();
      stamps_[index] = {step.work->started(), step.work->ended()};
      step.work.reset();
      release(step);
    }
  if (threads_) add_waiting(computed_, now());
  return stamps_;
}

/// Repeats the reading if the thread lost its core meanwhile, which would affect one number and not the
/// others.
ProgramRunner::Instant ProgramRunner::now() const {
  constexpr int kTries = 5;
  constexpr double kLost = 20e-6;
  Instant instant;
  double queued_before_s = threads_->seconds();
  for (int i = 0; i < kTries; ++i) {
    instant = {wall_clock_s(), process_cpu_s(), threads_->seconds()};
    if (instant.queued_s - queued_before_s < kLost) break;
    queued_before_s = instant.queued_s;
  }
  return instant;
}

/// Adds run-queue delay during a wait for other ranks.
void ProgramRunner::add_waiting(const Instant& from, const Instant& to) {
  computing_.queued_s += std::clamp(to.queued_s - from.queued_s, 0.0, to.idle_since(from));
}

/// Runs an operation that computes, timed without its waits for other ranks.
void ProgramRunner::compute(Step& step) {
  // Parts of other operations and waits are not measured.
  if (!threads_ || step.within >= 0 || step.stamps_wait) return step.op.run();
  waited_s_ = idle_s_ = 0.0;
  const Instant begin = now();
  add_waiting(computed_, begin);
  computes_ = true;
  step.op.run();
  computes_ = false;
  computed_ = now();
  computing_.wall_s += computed_.time_s - begin.time_s - waited_s_;
  computing_.lost_s += std::max(0.0, computed_.idle_since(begin) - idle_s_);
}

void ProgramRunner::wait(Step& step) {
  if (!computes_) return step.work->wait();
  const Instant begin = now();
  step.work->wait();
  const Instant end = now();
  add_waiting(begin, end);
  waited_s_ += end.time_s - begin.time_s;
  idle_s_ += end.idle_since(begin);
}

void ProgramRunner::run_inline(std::size_t index) {
  Step& step = steps_[index];
  const MemoryScope scope(step.memory);
  const Clock::time_point before_wait = step.stamps_wait ? Clock::now() : Clock::time_point();
  std::size_t before = latest_event_;
  if (device_ != nullptr && step.stamps_wait && step.within >= 0) before = device_->record_event();
  for (const std::size_t earlier : step.wait_for) finish(earlier);
  stamps_[index].start = step.stamps_wait ? before_wait : Clock::now();
  hook_parent_ = static_cast<int>(index);
  if (device_ != nullptr && !step.stamps_wait && (step.within >= 0 || !step.wait_for.empty()))
    before = device_->record_event();
  compute(step);
  if (device_ != nullptr) events_[index] = {before, latest_event_ = device_->record_event()};
  stamps_[index].end = Clock::now();
  step.done = true;
  launch_ready();
  for (const std::size_t message : posted_)  // frees the memory of sent messages
    if (steps_[message].held && steps_[message].work->done()) release(steps_[message]);
}

void ProgramRunner::gradient_ready(int tensor) { run_hooks(hooks_[tensor]); }

void ProgramRunner::collective_ready(int exchange) { run_hooks(collective_hooks_[exchange]); }

void ProgramRunner::run_hooks(const std::vector<std::size_t>& hooks) {
  const int parent = hook_parent_;
  for (const std::size_t index : hooks)
    if (steps_[index].within == parent)
      steps_[index].op.run ? run_inline(index) : submit_up_to(steps_[index]);
  hook_parent_ = parent;
}

void ProgramRunner::launch(Step& step) {
  const MemoryScope scope(step.memory);
  step.work = step.op.launch();
  step.held = step.op.release != nullptr;
  if (!step.posted) ++launched_;
}

void ProgramRunner::launch_ready() {
  const auto is_done = [this](std::size_t earlier) { return steps_[earlier].done; };
  while (launched_ < collectives_.size()) {
    Step& next = steps_[collectives_[launched_]];
    if (next.on_demand || !std::ranges::all_of(next.after, is_done)) return;
    launch(next);
  }
}

/// Submits the collectives up to this one, in the order of the stream.
void ProgramRunner::submit_up_to(const Step& step) {
  while (step.work == nullptr) {
    Step& next = steps_[collectives_.at(launched_)];
    if (next.on_demand && &next != &step)
      throw std::logic_error("collective '" + program_.ops[collectives_[launched_]].name +
                             "' was not reached, but the program waits for a later one");
    for (const std::size_t earlier : next.wait_for) finish(earlier);
    launch(next);
  }
}

void ProgramRunner::post(std::size_t index) {
  Step& step = steps_[index];
  for (const std::size_t earlier : step.wait_for) {
    submit_up_to(steps_[earlier]);
    if (step.op.staged)
      wait(steps_[earlier]);
    else if (step.op.stream != nullptr)
      steps_[earlier].work->precede(step.op.stream);
    else
      finish(earlier);
  }
  launch(step);
  if (step.op.staged) wait(step);
}

/// Waits for communication or a copy, or makes the device wait for it.
void ProgramRunner::finish(std::size_t index) {
  Step& step = steps_[index];
  submit_up_to(step);
  if (!step.done && device_ != nullptr)
    step.work->precede(nullptr);
  else if (!step.done)
    wait(step);
  step.done = true;
}

void ProgramRunner::release(Step& step) {
  if (step.held) step.op.release();
  step.held = false;
}

}  // namespace stepcast
