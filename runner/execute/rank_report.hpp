#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "runner/backend/session.hpp"
#include "runner/execute/clock_alignment.hpp"
#include "runner/execute/memory_account.hpp"
#include "sim/records/result.hpp"
#include "sim/schedule/schedule.hpp"

/// What one rank notes while it runs, and how the notes of all ranks become one Result.
namespace stepcast {

/// When an operation ran.
struct Stamp {
  std::chrono::steady_clock::time_point start;
  std::chrono::steady_clock::time_point end;
};

/// The notes of one rank: a few numbers per step and two instants per operation, in memory taken before the
/// first step.
class RankLog {
 public:
  RankLog(const Schedule& schedule, int rank, int warmup_steps, int steps);

  /// Compares this rank's clock with rank 0's, which `report` does once more; all ranks call it, before the
  /// first step.
  void compare_clocks(RankSession& session);
  /// What this rank sent in one measured step.
  void set_bytes_sent(double bytes) { bytes_sent_ = bytes; }
  /// \param step negative during warm-up
  void add(int step, std::chrono::steady_clock::time_point start, std::chrono::steady_clock::time_point end,
           const std::vector<Stamp>& stamps, double loss);

  /// What the rank's tensors held when that was most.
  void set_memory(const MemoryBytes& peak) { memory_ = peak; }

  /// Collects the notes of all ranks; every rank calls it. Complete at rank 0, step times alone elsewhere.
  [[nodiscard]] Result report(RankSession& session) const;

 private:
  [[nodiscard]] std::vector<Span> spans(int rank, std::size_t step, double origin_s) const;
  [[nodiscard]] Breakdown median_breakdown(int rank) const;
  [[nodiscard]] MemoryUse memory_use(int rank) const;

  const Schedule& schedule_;
  const Program& program_;
  ClockOffset before_;  ///< before the first step
  double bytes_sent_ = 0.0;
  MemoryBytes memory_{};
  std::vector<double> warmup_step_time_s_;
  std::vector<double> start_s_;      ///< by step, in seconds of the steady clock
  std::vector<double> step_time_s_;  ///< by step
  std::vector<double> loss_;         ///< by step
  std::vector<Stamp> stamps_;        ///< step after step
};

}  // namespace stepcast
