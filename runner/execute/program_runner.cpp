#include "runner/execute/program_runner.hpp"

#include <algorithm>
#include <cassert>
#include <chrono>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>

#include "core/error.hpp"
#include "runner/execute/memory_account.hpp"

namespace stepcast {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

ProgramRunner::ProgramRunner(const Schedule& schedule, Backend& backend, DeviceQueue* device)
    : schedule_(schedule),
      program_(schedule.program(backend.rank())),
      backend_(backend),
      device_(device),
      stamps_(program_.ops.size()),
      marks_(program_.ops.size()) {
  assert(schedule.world_size == backend.world_size());
  for (const Group& group : schedule.groups) {
    const bool everybody = static_cast<int>(group.ranks.size()) == backend.world_size();
    const bool member =
        std::find(group.ranks.begin(), group.ranks.end(), backend.rank()) != group.ranks.end();
    subgroups_.push_back(everybody || !member ? nullptr : backend.subgroup(group.name, group.ranks));
  }
}

void ProgramRunner::refuse_copies() {
  throw CapabilityError("copies between the memories of a host and its GPUs need a runner that drives GPUs");
}

Backend& ProgramRunner::backend_of(int group) {
  const int index = schedule_.group_index(group, backend_.rank());
  const std::unique_ptr<Backend>& subgroup = subgroups_.at(static_cast<std::size_t>(index));
  return subgroup != nullptr ? *subgroup : backend_;
}

ProgramRunner::Launch ProgramRunner::launch_of(const Collective& collective) {
  Backend& group = backend_of(collective.group);
  const bool gathers = collective.kind == CollectiveKind::kGather && group.rank() == collective.root;
  return std::visit(
      Overloaded{
          [&](const GradientArray& gradient) {
            return array_launch(collective, group, array(gradient),
                                gathers ? contributions(gradient.tensor, group.world_size()) : Array{});
          },
          [&](const OneOf<BucketArray, BufferArray> auto& payload) {
            return array_launch(collective, group, array(payload), {});
          },
          [&](const UnitParameters& payload) {
            return unit_launch(collective.kind, group, payload.unit, false);
          },
          [&](const UnitGradients& payload) {
            return unit_launch(collective.kind, group, payload.unit, payload.shard);
          },
          [&](const ExchangeArray& which) { return exchange_launch(collective.kind, group, which); },
      },
      collective.payload);
}

/// Of a collective on one array in place. \param gathered on the root of a gather, where what it gathers goes
ProgramRunner::Launch ProgramRunner::array_launch(const Collective& collective, Backend& group, Array own,
                                                  Array gathered) {
  const int root = collective.root;
  switch (collective.kind) {
    case CollectiveKind::kAllReduce:
      return [&group, own] { return group.all_reduce(own); };
    case CollectiveKind::kBroadcast:
      return [&group, own, root] { return group.broadcast(own, root); };
    case CollectiveKind::kGather:
      return [&group, own, gathered, root] { return group.gather(own, gathered, root); };
    case CollectiveKind::kScatter: {
      std::vector<Array> parts;
      if (group.rank() == root) parts.assign(static_cast<std::size_t>(group.world_size()), own);
      return [&group, own, parts, root] { return group.scatter(parts, own, root); };
    }
    case CollectiveKind::kAllGather:
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kAllToAll:
    case CollectiveKind::kShift:
      break;
  }
  throw CapabilityError("strategy '" + schedule_.strategy + "': " + to_text(collective.kind) +
                        " of single tensors is not executed, only predicted");
}

ProgramRunner::Launch ProgramRunner::unit_launch(CollectiveKind kind, Backend& group, int index, bool shard) {
  switch (kind) {
    case CollectiveKind::kAllGather:
      return [this, &group, index] {
        take_parameters(index);
        const UnitArrays on = unit(index);
        return group.all_gather(on.parameter_shard, on.parameters);
      };
    case CollectiveKind::kReduceScatter:
      return [this, &group, index] {
        convert_gradients(index);
        const UnitArrays on = unit(index);
        return group.reduce_scatter(on.gradients, on.gradient_shard);
      };
    case CollectiveKind::kAllReduce:
      return [this, &group, index, shard] {
        const UnitArrays on = unit(index);
        return group.all_reduce(shard ? on.gradient_shard : on.gradients);
      };
    case CollectiveKind::kGather:
    case CollectiveKind::kScatter:
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kAllToAll:
    case CollectiveKind::kShift:
      break;
  }
  throw CapabilityError(std::string(to_text(kind)) + " of an FSDP unit is not executed, only predicted");
}

ProgramRunner::Launch ProgramRunner::exchange_launch(CollectiveKind kind, Backend& group,
                                                     const ExchangeArray& which) {
  return [this, kind, &group, which] {
    const auto [own, other] = exchange(which.exchange);
    if (kind == CollectiveKind::kAllGather) return group.all_gather(own, other);
    if (kind == CollectiveKind::kReduceScatter) return group.reduce_scatter(own, other);
    if (kind == CollectiveKind::kAllToAll) return group.all_to_all(own, other);
    if (kind == CollectiveKind::kShift) return group.shift(own, other);
    return which.maximum ? group.all_reduce_maximum(own) : group.all_reduce(own);
  };
}

void ProgramRunner::add(std::size_t index, CompiledOp compiled) {
  const Op& op = program_.ops[index];
  const bool collective = std::holds_alternative<Collective>(op.action);
  Step step;
  step.op = std::move(compiled);
  for (const int earlier : op.after) {
    step.after.push_back(static_cast<std::size_t>(earlier));
    if (program_.ops[static_cast<std::size_t>(earlier)].stream == Stream::kComm)
      step.wait_for.push_back(static_cast<std::size_t>(earlier));
  }
  // A collective is handed over when the calling thread has come so far in the program, not before.
  for (std::size_t i = index; collective && i-- > 0;)
    if (program_.ops[i].stream != Stream::kComm) {
      step.after.push_back(i);
      break;
    }
  step.message = operation_of(op).start == Start::kWhenReady;
  step.stamps_wait = std::holds_alternative<Synchronize>(op.action);
  step.within = op.within;
  step.on_demand = collective && op.exchange >= 0;
  step.memory = operation_of(op).workspace;
  if (collective) {
    collectives_.push_back(index);
    if (is_shift(op)) exchange_hooks_[op.exchange].push_back(index);
  } else if (op.exchange >= 0) {
    exchange_hooks_[op.exchange].push_back(index);
  } else if (op.within >= 0) {
    hooks_[static_cast<std::size_t>(op.ready_tensor)].push_back(index);
  } else {
    inline_.push_back(index);
    if (step.message) messages_.push_back(index);
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
    if (steps_[i].op.run) stamps_[i] = {device_->passed(marks_[i].first), device_->passed(marks_[i].second)};
}

const std::vector<Stamp>& ProgramRunner::step() {
  if (device_ != nullptr) latest_mark_ = device_->mark();
  for (Step& step : steps_) step.done = false;
  launched_ = 0;
  computing_ = {};
  if (threads_) computed_ = now();
  for (const std::size_t index : inline_) {
    if (steps_[index].message) {
      for (const std::size_t earlier : steps_[index].wait_for) finish(earlier);
      launch(steps_[index]);
    } else {
      run_inline(index);
    }
  }
  for (const std::vector<std::size_t>* all : {&collectives_, &messages_})
    for (const std::size_t index : *all) finish(index);
  for (const std::vector<std::size_t>* all : {&collectives_, &messages_})
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

/// Reading takes long enough to lose the core meanwhile, which would be in one of the numbers and not in the others.
ProgramRunner::Instant ProgramRunner::now() const {
  constexpr int kTries = 5;
  constexpr double kLost = 20e-6;
  Instant instant;
  double in_line_before_s = threads_->waited_s();
  for (int i = 0; i < kTries; ++i) {
    instant = {std::chrono::duration<double>(Clock::now().time_since_epoch()).count(), process_ran_s(),
               threads_->waited_s()};
    if (instant.in_line_s - in_line_before_s < kLost) break;
    in_line_before_s = instant.in_line_s;
  }
  return instant;
}

/// What ranks wait for others, and stand in line for meanwhile.
void ProgramRunner::add_waiting(const Instant& from, const Instant& to) {
  computing_.in_line_s += std::clamp(to.in_line_s - from.in_line_s, 0.0, to.idle_since(from));
}

/// An operation that computes, without what it waits for other ranks in between.
void ProgramRunner::compute(Step& step) {
  if (!threads_ || step.within >= 0 || step.stamps_wait)
    return step.op.run();  // in another one, or after a wait
  waited_s_ = idle_s_ = 0.0;
  const Instant begin = now();
  add_waiting(computed_, begin);
  computes_ = true;
  step.op.run();
  computes_ = false;
  computed_ = now();
  computing_.wall_s += computed_.time_s - begin.time_s - waited_s_;
  computing_.taken_s += std::max(0.0, computed_.idle_since(begin) - idle_s_);
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
  std::size_t before = latest_mark_;
  if (device_ != nullptr && step.stamps_wait && step.within >= 0) before = device_->mark();
  for (const std::size_t earlier : step.wait_for) finish(earlier);
  stamps_[index].start = step.stamps_wait ? before_wait : Clock::now();
  hook_host_ = static_cast<int>(index);
  if (device_ != nullptr && !step.stamps_wait && (step.within >= 0 || !step.wait_for.empty()))
    before = device_->mark();
  compute(step);
  if (device_ != nullptr) marks_[index] = {before, latest_mark_ = device_->mark()};
  stamps_[index].end = Clock::now();
  step.done = true;
  launch_ready();
  for (const std::size_t message : messages_)  // gives up the memory of those that have left
    if (steps_[message].held && steps_[message].work->done()) release(steps_[message]);
}

void ProgramRunner::gradient_ready(int tensor) { run_hooks(hooks_[static_cast<std::size_t>(tensor)]); }

void ProgramRunner::exchange_ready(int exchange) { run_hooks(exchange_hooks_[exchange]); }

void ProgramRunner::run_hooks(const std::vector<std::size_t>& hooks) {
  const int host = hook_host_;
  for (const std::size_t index : hooks)
    if (steps_[index].within == host) steps_[index].op.run ? run_inline(index) : hand_over(steps_[index]);
  hook_host_ = host;
}

void ProgramRunner::launch(Step& step) {
  const MemoryScope scope(step.memory);
  step.work = step.op.launch();
  step.held = step.op.release != nullptr;
  if (!step.message) ++launched_;
}

void ProgramRunner::launch_ready() {
  const auto is_done = [this](std::size_t earlier) { return steps_[earlier].done; };
  while (launched_ < collectives_.size()) {
    Step& next = steps_[collectives_[launched_]];
    if (next.on_demand || !std::all_of(next.after.begin(), next.after.end(), is_done)) return;
    launch(next);
  }
}

/// After whatever is before it in the stream.
void ProgramRunner::hand_over(const Step& step) {
  while (step.work == nullptr) {
    Step& next = steps_[collectives_.at(launched_)];
    if (next.on_demand && &next != &step)
      throw std::logic_error("exchange '" + program_.ops[collectives_[launched_]].name +
                             "' has not come, but what stands behind it is waited for");
    for (const std::size_t earlier : next.wait_for) finish(earlier);
    launch(next);
  }
}

/// Waits for a communication operation, or has the device do it.
void ProgramRunner::finish(std::size_t index) {
  Step& step = steps_[index];
  hand_over(step);
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
