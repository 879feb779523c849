#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runner/execute/device_copies.hpp"
#include "runner/execute/program_runner.hpp"

/// Executes a Schedule of copies between the memories of one host and its devices.
namespace stepcast {

/// Program of rank 0, whose process drives the devices of all ranks: device r belongs to rank r.
///
/// Each pair of memories has a stream, on the device that is read or, from the host, on the device that is
/// written. Copies between the same two memories carry successive parts of the array.
class CopyProgram final : public ProgramRunner {
 public:
  /// \pre all outlive this \throws UsageError if there are fewer devices than ranks; CapabilityError for
  /// other operations than copies, for copies into host memory, and if some host memory is pinned and some is
  /// not
  CopyProgram(const Schedule& schedule, Backend& backend, DeviceCopies& copies);

  void prepare() override { copies_.restart_clock(); }
  [[nodiscard]] std::optional<std::uint64_t> bytes_sent() const override { return bytes_; }
  void forget_peak() override {}
  [[nodiscard]] MemoryBytes peak() const override;

  /// Fills host memory with copied_pattern() and that of devices with another seed, so that data of an
  /// earlier run does not pass for data that arrived. \pre no copy is in flight
  void fill(unsigned seed);
  /// Compares every byte of every device. \throws RunError that names the first device with a byte that
  /// fill() did not write
  void check(unsigned seed);

 private:
  struct Memory {
    std::size_t bytes = 0;
    std::shared_ptr<void> at{};
    [[nodiscard]] char* part(std::size_t offset) const { return static_cast<char*>(at.get()) + offset; }
  };
  CompiledOp resolve(const Copy& copy);

  DeviceCopies& copies_;
  std::uint64_t bytes_ = 0;
  std::map<MemoryLocation, Memory> memory_;
  std::map<std::pair<MemoryLocation, MemoryLocation>, std::size_t> streams_, moved_;  ///< by pair of memories
};

/// One sentence for each pair of devices between which the driver stages copies in host memory.
std::vector<std::string> staged_copies(const Schedule& schedule, DeviceCopies& copies);

/// Runs warm-up and measured steps, and one more with other data, of which it compares every byte on every
/// device. Step times, spans and breakdown are those of rank 0. \pre the session has one rank \throws as
/// CopyProgram
Result run_copied(const Schedule& schedule, RankSession& session, DeviceCopies& copies, const StepLoop& loop);

}  // namespace stepcast
