#include "runner/execute/copied_run.hpp"

#include <algorithm>
#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include "core/error.hpp"
#include "core/ranges.hpp"

namespace stepcast {
namespace {

const Copy& copy_of(const Op& op) {
  const auto* copy = std::get_if<Copy>(&op.action);
  if (copy == nullptr)
    throw CapabilityError("operation '" + op.name + "': a Schedule of copies runs copies only");
  if (copy->to.is_host())
    throw CapabilityError("operation '" + op.name + "': copies into host memory are predicted, not executed");
  return *copy;
}

/// Program of rank 0, whose process drives the devices of all ranks: device r belongs to rank r.
///
/// Each pair of memories has a stream, on the device that is read or, from the host, on the device that is
/// written. Copies between the same two memories carry successive parts of the array.
class CopyProgram final : public ProgramRunner {
 public:
  /// \pre all outlive this \throws as run_copied()
  CopyProgram(const Schedule& schedule, Backend& backend, DeviceCopies& copies)
      : ProgramRunner(schedule, backend), copies_(copies) {
    if (schedule.world_size > copies.devices())
      throw UsageError("--nproc {} of strategy '{}' are as many GPUs of one host, which has {}",
                       schedule.world_size, schedule.strategy, copies.devices());
    std::optional<bool> pinned;
    for (const Op& op : program_.ops) {
      const Copy& copy = copy_of(op);
      if (copy.touches_host() && pinned.value_or(copy.pinned) != copy.pinned)
        throw CapabilityError("operation '" + op.name + "': host memory is either pinned or not");
      if (copy.touches_host()) pinned = copy.pinned;
      const auto bytes = static_cast<std::size_t>(copy.message.count());
      bytes_ += bytes;
      const std::size_t end = moved_[{copy.from, copy.to}] += bytes;
      for (const MemoryLocation& place : {copy.from, copy.to})
        memory_[place].bytes = std::max(memory_[place].bytes, end);
    }
    for (auto& [place, memory] : memory_)
      memory.at = place.is_host() ? copies.host_memory(memory.bytes, pinned.value_or(true))
                                  : copies.device_memory(place.offset, memory.bytes);
    for (auto& [pair, moved] : moved_) {
      const auto& [from, to] = pair;
      if (!from.is_host()) static_cast<void>(copies.reaches(from.offset, to.offset));
      streams_[pair] = copies.make_stream(from.is_host() ? to.offset : from.offset);
      moved = 0;
    }
    compile(0, Overloaded{[this](const Copy& copy, std::size_t) { return resolve(copy); },
                          [](const OneOf<Send, Recv> auto&, std::size_t) { return CompiledOp{}; },
                          [](const auto&, std::size_t) { return Function(); }});
  }

  void prepare() override { copies_.restart_clock(); }
  [[nodiscard]] std::optional<std::uint64_t> bytes_sent() const override { return bytes_; }
  void forget_peak() override {}
  [[nodiscard]] MemoryBytes peak() const override {
    MemoryBytes bytes;
    const Memory own = value_or(memory_, MemoryLocation{MemoryLocation::Kind::kDevice, 0}, {});
    bytes[MemoryCategory::kCommunication] = static_cast<double>(own.bytes);
    return bytes;
  }

  /// Fills host memory with copied_pattern() and that of devices with another seed, so that data of an
  /// earlier run does not pass for data that arrived. \pre no copy is in flight
  void fill(unsigned seed) {
    for (const auto& [place, memory] : memory_) {
      const std::vector<unsigned char> data = copied_pattern(memory.bytes, place.is_host() ? seed : seed + 1);
      copies_.copy_now(memory.at.get(), data.data(), memory.bytes);
    }
  }

  /// Compares every byte of every device. \throws RunError that names the first device with a byte that
  /// fill() did not write
  void check(unsigned seed) {
    std::vector<unsigned char> arrived;
    for (const auto& [place, memory] : memory_) {
      if (place.is_host()) continue;
      const std::vector<unsigned char> sent = copied_pattern(memory.bytes, seed);
      arrived.resize(memory.bytes);
      copies_.copy_now(arrived.data(), memory.at.get(), memory.bytes);
      const auto [wrong, expected] = std::mismatch(arrived.begin(), arrived.end(), sent.begin());
      if (wrong != arrived.end())
        throw RunError("gpu{} has not received what the host sent: byte {} of {} is {}, not {}", place.offset,
                       wrong - arrived.begin(), memory.bytes, *wrong, *expected);
    }
  }

 private:
  struct Memory {
    std::size_t bytes = 0;
    std::shared_ptr<void> at{};
    [[nodiscard]] char* part(std::size_t offset) const { return static_cast<char*>(at.get()) + offset; }
  };

  CompiledOp resolve(const Copy& copy) {
    const auto bytes = static_cast<std::size_t>(copy.message.count());
    const std::size_t stream = streams_.at({copy.from, copy.to});
    std::size_t& moved = moved_.at({copy.from, copy.to});
    char* const to = memory_.at(copy.to).part(moved);
    const char* const from = memory_.at(copy.from).part(moved);
    moved += bytes;
    return {.launch = [this, stream, to, from, bytes] { return copies_.copy(stream, to, from, bytes); },
            .stream = copies_.handle(stream),
            .staged = copy.staged()};
  }

  DeviceCopies& copies_;
  std::uint64_t bytes_ = 0;
  std::map<MemoryLocation, Memory> memory_;
  std::map<std::pair<MemoryLocation, MemoryLocation>, std::size_t> streams_, moved_;  ///< by pair of memories
};

}  // namespace

std::vector<std::string> staged_copies(const Schedule& schedule, DeviceCopies& copies) {
  std::set<std::string> sentences;
  for (const Op& op : schedule.program(0).ops) {
    const Copy& copy = copy_of(op);
    if (copy.touches_host() || copies.reaches(copy.from.offset, copy.to.offset)) continue;
    sentences.insert(fmt::format("gpu{} cannot reach gpu{} directly: copies go through host memory",
                                 copy.from.offset, copy.to.offset));
  }
  return {sentences.begin(), sentences.end()};
}

Result run_copied(const Schedule& schedule, RankSession& session, DeviceCopies& copies,
                  const StepLoop& loop) {
  CopyProgram program(schedule, *session.backend, copies);
  program.fill(0);
  Result result = run_steps(program, schedule, session, loop);
  result.loss.clear();
  program.fill(1);
  program.prepare();
  static_cast<void>(program.step());
  program.check(1);
  return result;
}

}  // namespace stepcast
