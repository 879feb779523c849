#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "sim/core/error.hpp"
#include "sim/strategies/local_step.hpp"
#include "sim/strategies/strategy.hpp"

namespace stepcast {
namespace {

constexpr double kMostChunks = 10'000;

/// Copies, in the order in which one thread of rank 0's process issues them. With B bytes, n devices, h
/// bytes/s from the host and p bytes/s between two devices, all on an idle node and without the time to issue
/// a copy:
///
///     sequential  n B / h                      every device from the host, one after the other
///     relay       B / h + (n - 1) B / p        device 0 from the host, then each other one from device 0,
///                                              one after the other
///     chunked     B / min(h, p / (n - 1)) + min(c / h, (n - 1) c / p)        with chunks of c bytes
///
/// In `chunked` every chunk follows the one before on the stream from the host, and is passed on to all other
/// devices, each by a stream of its own, while the next arrives. The last chunk is the shorter one where c
/// does not divide B. It overlaps only from pinned memory: else the host's thread stages a chunk, and issues
/// nothing meanwhile.
class Copies {
 public:
  explicit Copies(const TrainingConfig& config) : config_(config) {}

  Program sequential() {
    int before = kNone;
    for (int rank = 0; rank < config_.world_size; ++rank)
      before = from_host(rank, config_.buffer, "", {before});
    return std::move(program_);
  }

  Program relay() {
    int before = from_host(0, config_.buffer, "", {});
    for (int rank = 1; rank < config_.world_size; ++rank)
      before = from_device(rank, config_.buffer, "", {before});
    return std::move(program_);
  }

  Program chunked() {
    int arrived = kNone;
    std::vector<int> passed(static_cast<std::size_t>(config_.world_size), kNone);
    Bytes left = config_.buffer;
    for (int i = 0; left > Bytes(0); ++i) {
      const Bytes chunk = std::min(left, config_.chunk);
      left -= chunk;
      const std::string suffix = "/chunk" + std::to_string(i);
      arrived = from_host(0, chunk, suffix, {arrived});
      for (int rank = 1; rank < config_.world_size; ++rank) {
        int& before = passed[static_cast<std::size_t>(rank)];
        before = from_device(rank, chunk, suffix, {arrived, before});
      }
    }
    return std::move(program_);
  }

 private:
  static constexpr int kNone = -1;  // nothing comes before

  int from_host(int rank, Bytes message, const std::string& suffix, std::vector<int> after) {
    return add("host_to_gpu" + std::to_string(rank) + suffix,
               {.from = {}, .to = device(rank), .message = message}, std::move(after));
  }
  int from_device(int rank, Bytes message, const std::string& suffix, std::vector<int> after) {
    return add("gpu0_to_gpu" + std::to_string(rank) + suffix,
               {.from = device(0), .to = device(rank), .message = message}, std::move(after));
  }
  static MemoryPlace device(int rank) { return {MemoryPlace::Kind::kDevice, rank}; }

  int add(std::string name, Copy copy, std::vector<int> after) {
    std::erase(after, kNone);
    copy.pinned = config_.pinned;
    Op op;
    op.name = std::move(name);
    op.stream = Stream::kCopy;
    op.action = copy;
    op.after = std::move(after);
    program_.ops.push_back(std::move(op));
    return static_cast<int>(program_.ops.size()) - 1;
  }

  const TrainingConfig& config_;
  Program program_;
};

Program copies_of(const TrainingConfig& config) {
  require_one_of("method", config.method, {"sequential", "relay", "chunked"});
  Copies copies(config);
  if (config.method == "sequential") return copies.sequential();
  if (config.method == "relay") return copies.relay();
  if (config.buffer / config.chunk > kMostChunks)
    throw UsageError("--chunk " + to_text(config.chunk) + " cuts --buffer " + to_text(config.buffer) +
                     " into more than 10000 chunks; take larger ones");
  return copies.chunked();
}

constexpr Bytes kLargestBuffer(1024.0 * kGibi);  // a host's memory

/// A buffer in host memory goes to the devices of all ranks. One process drives them all: the operations are
/// rank 0's, the other ranks only hold the buffer. It is no training step, and needs no model.
Schedule build(const Model& /*model*/, const TrainingConfig& config) {
  for (const auto& [option, size] : {std::pair{"buffer", config.buffer}, std::pair{"chunk", config.chunk}})
    if (size < Bytes(1) || size > kLargestBuffer)
      throw UsageError(std::string("--") + option + " must be from 1 B to " + to_text(kLargestBuffer));
  Schedule schedule = make_schedule("broadcast", config);
  schedule.data_parallel = 0;
  schedule.data_index.clear();
  schedule.programs = {copies_of(config), {}};
  schedule.program_of_rank.assign(schedule.program_of_rank.size(), 1);
  schedule.program_of_rank.front() = 0;
  for (Program& program : schedule.programs)
    program.resident = {{.category = MemoryCategory::kCommunication, .size = config.buffer}};
  schedule.options = {{"method", config.method},
                      {"buffer", to_text(config.buffer)},
                      {"host memory", config.pinned ? "pinned" : "pageable"}};
  if (config.method == "chunked") schedule.options["chunk"] = to_text(config.chunk);
  return schedule;
}

const Registration<Strategy> kBroadcast{
    strategies(),
    {.name = "broadcast",
     .description = "no training: one process copies a buffer of the host to all devices",
     .thing = {.build = build, .options = {"method", "buffer", "chunk", "pinned"}, .trains = false},
     .order = 90}};

}  // namespace
}  // namespace stepcast
