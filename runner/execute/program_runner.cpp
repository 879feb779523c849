#include "runner/execute/program_runner.hpp"

#include <algorithm>
#include <chrono>
#include <utility>
#include <variant>

#include "core/error.hpp"
#include "runner/execute/memory_account.hpp"
#include "sim/schedule/operations.hpp"

namespace stepcast {
namespace {

using Clock = std::chrono::steady_clock;

bool is_message(const Op& op) { return operation_of(op).start == Start::kWhenReady; }

}  // namespace

void refuse_copies() {
  throw CapabilityError("copies between the memories of a host and its GPUs need a runner that drives GPUs");
}

ProgramRunner::ProgramRunner(const Program& program, std::vector<CompiledOp> ops, std::size_t parameters)
    : hooks_(parameters),
      stamps_(program.ops.size()),
      done_(program.ops.size()),
      works_(program.ops.size()),
      held_(program.ops.size()) {
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    const Op& op = program.ops[i];
    steps_.push_back(make_step(program.ops, i, std::move(ops[i])));
    if (std::holds_alternative<Collective>(op.action)) {
      collectives_.push_back(i);
    } else if (op.within >= 0) {
      hooks_[static_cast<std::size_t>(op.ready_tensor)].push_back(i);
    } else {
      inline_.push_back(i);
      if (steps_[i].message) messages_.push_back(i);
    }
  }
}

ProgramRunner::Step ProgramRunner::make_step(const std::vector<Op>& ops, std::size_t index,
                                             CompiledOp compiled) {
  const Op& op = ops[index];
  Step step;
  step.op = std::move(compiled);
  for (const int earlier : op.after) {
    step.after.push_back(static_cast<std::size_t>(earlier));
    if (ops[static_cast<std::size_t>(earlier)].stream == Stream::kComm)
      step.wait_for.push_back(static_cast<std::size_t>(earlier));
  }
  // A collective is handed over when the calling thread has come so far in the program, not before.
  if (std::holds_alternative<Collective>(op.action))
    for (std::size_t i = index; i-- > 0;)
      if (ops[i].stream != Stream::kComm) {
        step.after.push_back(i);
        break;
      }
  step.message = is_message(op);
  step.stamps_wait = std::holds_alternative<Synchronize>(op.action);
  step.within = op.within;
  step.memory = operation_of(op).workspace;
  return step;
}

const std::vector<Stamp>& ProgramRunner::step() {
  std::fill(done_.begin(), done_.end(), 0);
  launched_ = 0;
  for (const std::size_t index : inline_) {
    if (steps_[index].message) {
      for (const std::size_t earlier : steps_[index].wait_for) finish(earlier);
      launch(index);
    } else {
      run_inline(index);
    }
  }
  for (const std::vector<std::size_t>* all : {&collectives_, &messages_})
    for (const std::size_t index : *all) finish(index);
  for (const std::vector<std::size_t>* all : {&collectives_, &messages_})
    for (const std::size_t index : *all) {
      stamps_[index] = {works_[index]->started(), works_[index]->ended()};
      works_[index].reset();
      release(index);
    }
  return stamps_;
}

void ProgramRunner::run_inline(std::size_t index) {
  const Step& step = steps_[index];
  const MemoryScope scope(step.memory);
  const Clock::time_point before_wait = step.stamps_wait ? Clock::now() : Clock::time_point();
  for (const std::size_t earlier : step.wait_for) finish(earlier);
  stamps_[index].start = step.stamps_wait ? before_wait : Clock::now();
  hook_host_ = static_cast<int>(index);
  step.op.run();
  stamps_[index].end = Clock::now();
  done_[index] = 1;
  launch_ready();
  release_sent();
}

void ProgramRunner::gradient_ready(int tensor) {
  const int host = hook_host_;
  for (const std::size_t index : hooks_[static_cast<std::size_t>(tensor)])
    if (steps_[index].within == host) run_inline(index);
  hook_host_ = host;
}

void ProgramRunner::launch(std::size_t index) {
  const Step& step = steps_[index];
  const MemoryScope scope(step.memory);
  works_[index] = step.op.launch();
  if (step.op.release) held_[index] = 1;
  if (!step.message) ++launched_;
}

void ProgramRunner::launch_ready() {
  const auto is_done = [this](std::size_t earlier) { return done_[earlier] != 0; };
  while (launched_ < collectives_.size()) {
    const std::size_t next = collectives_[launched_];
    if (!std::all_of(steps_[next].after.begin(), steps_[next].after.end(), is_done)) return;
    launch(next);
  }
}

/// Waits for a communication operation, after handing over whatever is before it in the stream.
void ProgramRunner::finish(std::size_t index) {
  while (works_[index] == nullptr) {
    const std::size_t next = collectives_.at(launched_);
    for (const std::size_t earlier : steps_[next].wait_for) finish(earlier);
    launch(next);
  }
  if (done_[index] == 0) works_[index]->wait();
  done_[index] = 1;
}

/// Gives up the memory of messages that have left.
void ProgramRunner::release_sent() {
  for (const std::size_t index : messages_)
    if (held_[index] != 0 && works_[index]->done()) release(index);
}

void ProgramRunner::release(std::size_t index) {
  if (held_[index] == 0) return;
  steps_[index].op.release();
  held_[index] = 0;
}

}  // namespace stepcast
