#include "runner/execute/copied_run.hpp"

#include <algorithm>
#include <set>
#include <string>

#include "core/error.hpp"

namespace stepcast {
namespace {

const Copy& copy_of(const Op& op) {
  const auto* copy = std::get_if<Copy>(&op.action);
  if (copy == nullptr)
    throw CapabilityError("operation '" + op.name + "': beside copies nothing else is executed");
  if (copy->to.kind == MemoryLocation::Kind::kHost)
    throw CapabilityError("operation '" + op.name + "': copies into host memory are predicted, not executed");
  return *copy;
}

}  // namespace

CopyProgram::CopyProgram(const Schedule& schedule, DeviceCopies& copies) : copies_(copies) {
  const Program& program = schedule.program(0);
  if (schedule.world_size > copies.devices())
    throw UsageError("--nproc " + std::to_string(schedule.world_size) + " of strategy '" + schedule.strategy +
                     "' are as many GPUs of one host, which has " + std::to_string(copies.devices()));
  using Pair = std::pair<int, int>;
  std::map<Pair, std::size_t> moved, queues;
  std::vector<Pair> pairs;
  std::vector<std::size_t> offsets;
  std::optional<bool> pinned;  // as all copies of host memory say
  for (const Op& op : program.ops) {
    const Copy& copy = copy_of(op);
    const Pair pair = pairs.emplace_back(number_of(copy.from), number_of(copy.to));
    const auto bytes = static_cast<std::size_t>(copy.message.count());
    std::size_t& offset = moved[pair];
    offsets.push_back(offset);
    offset += bytes;
    bytes_ += bytes;
    for (const int place : {pair.first, pair.second})
      memory_[place].bytes = std::max(memory_[place].bytes, offset);
    if (copy.touches_host() && pinned.value_or(copy.pinned) != copy.pinned)
      throw CapabilityError("operation '" + op.name + "': host memory is either pinned or not");
    if (copy.touches_host()) pinned = copy.pinned;
  }
  for (auto& [device, memory] : memory_)
    memory.at = device == kHost ? copies.host_memory(memory.bytes, pinned.value_or(true))
                                : copies.device_memory(device, memory.bytes);
  for (const auto& [pair, bytes] : moved) {
    const auto [from, to] = pair;
    if (from != kHost) static_cast<void>(copies.reaches(from, to));
    queues[pair] = copies.make_queue(from == kHost ? to : from);
  }
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    const Copy& copy = copy_of(program.ops[i]);
    const auto at = [&](int place) { return static_cast<char*>(memory_.at(place).at.get()) + offsets[i]; };
    issued_.push_back({.queue = queues.at(pairs[i]),
                       .to = at(pairs[i].second),
                       .from = at(pairs[i].first),
                       .bytes = static_cast<std::size_t>(copy.message.count()),
                       .staged = copy.staged(),
                       .after = {program.ops[i].after.begin(), program.ops[i].after.end()}});
  }
  stamps_.resize(issued_.size());
}

const std::vector<Stamp>& CopyProgram::step() {
  for (Issued& copy : issued_) {
    for (const std::size_t earlier : copy.after) {
      const Issued& before = issued_[earlier];
      if (copy.staged)
        copies_.wait(before.end);
      else if (before.queue != copy.queue)
        copies_.follow(copy.queue, before.end);
    }
    copy.start = copies_.mark(copy.queue);
    copies_.copy(copy.queue, copy.to, copy.from, copy.bytes);
    copy.end = copies_.mark(copy.queue);
    if (copy.staged) copies_.wait(copy.end);
  }
  for (const Issued& copy : issued_) copies_.wait(copy.end);
  return stamps_;
}

void CopyProgram::settle() {
  for (std::size_t i = 0; i < issued_.size(); ++i)
    stamps_[i] = {copies_.passed(issued_[i].start), copies_.passed(issued_[i].end)};
}

MemoryBytes CopyProgram::peak() const {
  MemoryBytes bytes{};
  const auto found = memory_.find(0);
  if (found != memory_.end())
    bytes[static_cast<std::size_t>(MemoryCategory::kCommunication)] =
        static_cast<double>(found->second.bytes);
  return bytes;
}

void CopyProgram::fill(unsigned seed) {
  for (const auto& [place, memory] : memory_) {
    const std::vector<unsigned char> data = copied_pattern(memory.bytes, place == kHost ? seed : seed + 1);
    copies_.copy_now(memory.at.get(), data.data(), memory.bytes);
  }
}

void CopyProgram::check(unsigned seed) {
  std::vector<unsigned char> arrived;
  for (const auto& [device, memory] : memory_) {
    if (device == kHost) continue;
    const std::vector<unsigned char> sent = copied_pattern(memory.bytes, seed);
    arrived.resize(memory.bytes);
    copies_.copy_now(arrived.data(), memory.at.get(), memory.bytes);
    const auto [wrong, expected] = std::mismatch(arrived.begin(), arrived.end(), sent.begin());
    if (wrong != arrived.end())
      throw RunError("gpu" + std::to_string(device) + " has not received what the host sent: byte " +
                     std::to_string(wrong - arrived.begin()) + " of " + std::to_string(memory.bytes) +
                     " is " + std::to_string(*wrong) + ", not " + std::to_string(*expected));
  }
}

std::vector<std::string> staged_copies(const Schedule& schedule, DeviceCopies& copies) {
  std::set<std::string> sentences;
  for (const Op& op : schedule.program(0).ops) {
    const Copy& copy = copy_of(op);
    if (copy.touches_host() || copies.reaches(copy.from.offset, copy.to.offset)) continue;
    sentences.insert("gpu" + std::to_string(copy.from.offset) + " cannot reach gpu" +
                     std::to_string(copy.to.offset) + " directly: copies go through host memory");
  }
  return {sentences.begin(), sentences.end()};
}

Result run_copied(const Schedule& schedule, RankSession& session, DeviceCopies& copies,
                  const CopiedRunOptions& options) {
  CopyProgram program(schedule, copies);
  program.fill(0);
  Result result = run_steps(program, schedule, session,
                            {.warmup_steps = options.warmup_steps,
                             .steps = options.steps,
                             .on_step = [&](int step, double /*loss*/) { options.on_step(step); }});
  result.loss.clear();
  program.fill(1);
  program.prepare();
  static_cast<void>(program.step());
  program.check(1);
  return result;
}

}  // namespace stepcast
