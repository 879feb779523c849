#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "runner/execute/device_copies.hpp"
#include "runner/execute/rank_report.hpp"
#include "schedule/schedule.hpp"

/// Executes a Schedule of copies between the memories of one host and its devices.
namespace stepcast {

/// The program of rank 0, whose process drives the devices of all ranks: rank r's is device r.
///
/// The calling thread issues the copies in program order. Each pair of memories has a queue, of the device that is read or, from
/// the host, of that which is written; what a copy comes after in another queue its queue waits for, and the host goes on. A
/// copy of host memory that is not pinned is issued when what it comes after is done, and the host waits for its end. Copies
/// between the same two memories carry successive parts of what lies there. The step ends when all have arrived; a copy's span
/// is its device's, from when nothing in its queue is before it.
class CopyProgram final : public SteppedProgram {
 public:
  /// \pre both outlive this \throws UsageError where there are fewer devices than ranks; CapabilityError for other operations
  /// than copies, and for copies into host memory
  CopyProgram(const Schedule& schedule, DeviceCopies& copies);

  void prepare() override { copies_.restart(); }
  const std::vector<Stamp>& step() override;
  void settle() override;
  [[nodiscard]] std::optional<std::uint64_t> bytes_sent() const override { return bytes_; }
  void forget_peak() override {}
  [[nodiscard]] MemoryBytes peak() const override;

  /// Fills the host's memory with copied_pattern() and the devices' with that of another seed, so that what an earlier run
  /// left there passes for nothing that has arrived. \pre nothing is under way
  void fill(unsigned seed);
  /// Looks at every byte of every device. \throws RunError that names the first device with another one than fill() wrote
  void check(unsigned seed);

 private:
  struct Issued {
    std::size_t queue = 0;
    void* to = nullptr;
    const void* from = nullptr;
    std::size_t bytes = 0;
    bool staged = false;
    std::vector<std::size_t> after{};
    DeviceCopies::Mark start{}, end{};
  };
  struct Memory {
    std::size_t bytes = 0;
    std::shared_ptr<void> at{};
  };
  static constexpr int kHost = -1;
  static int number_of(const MemoryLocation& place) {
    return place.kind == MemoryLocation::Kind::kHost ? kHost : place.offset;
  }

  DeviceCopies& copies_;
  std::uint64_t bytes_ = 0;
  std::map<int, Memory> memory_;  ///< by device; kHost
  std::vector<Issued> issued_;    ///< by operation
  std::vector<Stamp> stamps_;
};

/// One sentence for each pair of devices whose copies the driver takes through host memory.
std::vector<std::string> staged_copies(const Schedule& schedule, DeviceCopies& copies);

struct CopiedRunOptions {
  int steps = 30;
  int warmup_steps = 5;
  std::function<void(int step)> on_step = [](int) {};
};

/// Warm-up and measured steps, and one more with other data of which every byte is looked at on every device. Of its Result
/// step times, spans and breakdown are rank 0's, which alone does something. \pre the session has one rank
/// \throws as CopyProgram
Result run_copied(const Schedule& schedule, RankSession& session, DeviceCopies& copies,
                  const CopiedRunOptions& options);

}  // namespace stepcast
