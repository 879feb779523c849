#include <algorithm>
#include <string>
#include <utility>

#include "core/error.hpp"
#include "sim/strategies/local_step.hpp"
#include "sim/strategies/strategy.hpp"

namespace stepcast::broadcast_strategy {
namespace {

constexpr double kMaxChunks = 10'000;

/// Copies of the broadcast in the order in which one thread of rank 0's process issues them. With B bytes, n
/// devices, h bytes/s from the host and p bytes/s between two devices, on an idle node and without launch
/// overhead:
///
///      sequential  n B / h                      every device from the host, one after another
///      relay       B / h + (n - 1) B / p        device 0 from the host, then the others from device 0, one
///                                               after another
///      chunked     B / min(h, p / (n - 1)) + min(c / h, (n - 1) c / p)        with chunks of c bytes
///
/// In `chunked` every chunk follows the one before on the stream from the host, and is passed on to all other
/// devices, on a stream each, while the next arrives. The last chunk is shorter if c does not divide B.
/// Copies overlap only from pinned memory: else the host thread stages a chunk and issues nothing meanwhile.
struct BroadcastCopies {
  int world_size;
  Bytes buffer;
  bool pinned;

  void sequential() {
    int before = kNone;
    for (int rank = 0; rank < world_size; ++rank) before = from_host(rank, buffer, "", before);
  }

  void relay() {
    int before = from_host(0, buffer, "", kNone);
    for (int rank = 1; rank < world_size; ++rank) before = from_device(rank, buffer, "", {before});
  }

  void chunked(Bytes largest) {
    int arrived = kNone;
    std::vector<int> passed(world_size, kNone);
    Bytes left = buffer;
    for (int i = 0; left > Bytes(0); ++i) {
      const Bytes chunk = std::min(left, largest);
      left -= chunk;
      const std::string suffix = "/chunk" + std::to_string(i);
      arrived = from_host(0, chunk, suffix, arrived);
      for (int rank = 1; rank < world_size; ++rank)
        passed[rank] = from_device(rank, chunk, suffix, {arrived, passed[rank]});
    }
  }

  Program take() { return std::move(program); }

  static constexpr int kNone = -1;  // nothing comes before

  int from_host(int rank, Bytes message, const std::string& suffix, int after) {
    return add("host_to_gpu" + std::to_string(rank) + suffix, {{}, device(rank), message, pinned}, {after});
  }
  int from_device(int rank, Bytes message, const std::string& suffix, std::vector<int> after) {
    return add("gpu0_to_gpu" + std::to_string(rank) + suffix, {device(0), device(rank), message, pinned},
               std::move(after));
  }
  static MemoryLocation device(int rank) { return {MemoryLocation::Kind::kDevice, rank}; }

  int add(std::string name, Copy copy, std::vector<int> after) {
    std::erase(after, kNone);
    return append(program, {.name = std::move(name), .action = copy, .after = std::move(after)});
  }

  Program program{};
};

Program copies_of(int world_size, StrategyOptions& options) {
  BroadcastCopies copies{world_size, options.bytes("buffer"), options.flag("pinned")};
  const std::string method = options.text("method");
  if (method != "chunked") options.refuse({"chunk"}, "with --method " + method + "; chunked takes it");
  if (method == "sequential") {
    copies.sequential();
  } else if (method == "relay") {
    copies.relay();
  } else {
    const Bytes chunk = options.bytes("chunk");
    if (options.bytes("buffer") / chunk > kMaxChunks)
      throw UsageError("--chunk " + options.text("chunk") + " cuts --buffer " + options.text("buffer") +
                       " into more than 10000 chunks; take larger ones");
    copies.chunked(chunk);
  }
  return copies.take();
}

/// Copies a buffer in host memory to the devices of all ranks. One process drives them all: rank 0 has the
/// operations, the other ranks only hold the buffer. It is no training step and needs no model.
Schedule build(const Model& /*model*/, const TrainingConfig& config, StrategyOptions& options) {
  Schedule schedule = make_schedule("broadcast", config);
  schedule.data_parallel = 0;
  schedule.data_index.clear();
  schedule.groups.clear();
  schedule.programs = {copies_of(config.world_size, options), {}};
  schedule.program_of_rank.assign(schedule.program_of_rank.size(), 1);
  schedule.program_of_rank.front() = 0;
  for (Program& program : schedule.programs)
    program.resident = {{.category = MemoryCategory::kCommunication, .size = options.bytes("buffer")}};
  return schedule;
}

const Registration<Strategy> kBroadcast(strategies(), "broadcast",
                                        "no training: one process copies a buffer of the host to all devices",
                                        {.build = build, .trains = false}, 90);

}  // namespace
}  // namespace stepcast::broadcast_strategy
