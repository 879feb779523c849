#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "models/model.hpp"
#include "records/result.hpp"
#include "runner/backend/session.hpp"
#include "runner/execute/memory_account.hpp"
#include "schedule/schedule.hpp"

/// Runs the steps of one rank, notes when its operations ran, and makes one Result of the notes of all ranks.
namespace stepcast {

/// When an operation ran.
struct Stamp {
  std::chrono::steady_clock::time_point start;
  std::chrono::steady_clock::time_point end;
};

/// What the thread that computes did in a step.
struct ComputingTime {
  double wall_s = 0.0;   ///< operations that compute, without what they wait for other ranks
  double taken_s = 0.0;  ///< of it, when this process did not run: others took the core
  /// Of what it waits for other ranks, what threads of this process that were ready stood in line for the core.
  double in_line_s = 0.0;
};

/// What a step would have taken had others left the cores alone, from what each rank's thread did in it:
///
///     max_i (wall_i - taken_i)  +  max(0, max_i step_i - max_i wall_i - max(0, sum_i in_line_i - own))
///
/// The rank with most to compute waits least, and only for messages, which stop while a thread of any rank that they need stands
/// in line behind others. Threads of one rank stand behind each other too: `own`, the least that a step of the run has of it,
/// and no more than 4 % of a step (without others 2 to 4 % were seen, of VGG-11 on two ranks that are a core each).
/// With nothing taken it is the longest step of a rank. Where ranks meet more than once in a step, it says too much: waiting for
/// a rank that was held up between two meetings counts as messages; what the kernel's own threads stand in line for is not seen,
/// nor what others take from computing while a thread of the same process communicates on another core. Where many stand in line
/// at once it says too little. \pre a step and a computing time per rank
double undisturbed_step_s(const std::vector<double>& step_s, const std::vector<ComputingTime>& computing,
                          double own_in_line_s = 0.0);

/// What a rank does in every step.
class SteppedProgram {
 public:
  virtual ~SteppedProgram() = default;
  /// Called before and after each step, outside its step time.
  virtual void prepare() {}
  virtual void settle() {}
  /// Runs the next step and returns its stamps, one per operation. Complete after settle(), valid until the next call.
  virtual const std::vector<Stamp>& step() = 0;
  /// From the next step on computing() is known, where this program can tell; it takes some microseconds per operation.
  virtual void watch_processor() {}
  /// In the latest step.
  [[nodiscard]] virtual std::optional<ComputingTime> computing() const { return std::nullopt; }
  /// Of the latest step, mean over the micro-batches; 0 on a rank that computes no loss.
  [[nodiscard]] virtual double loss() const { return 0.0; }
  /// What this rank sends in one step, where that is not what the session's backend counts.
  [[nodiscard]] virtual std::optional<std::uint64_t> bytes_sent() const { return std::nullopt; }
  /// What tensors held at most since the last forget_peak(): as memory_account.hpp counts it, unless a device does.
  virtual void forget_peak() { forget_memory_peak(); }
  [[nodiscard]] virtual MemoryBytes peak() const { return peak_memory(); }
};

struct StepLoop {
  int warmup_steps = 0;
  int steps = 1;
  /// Called with the step (warm-up is negative) and its loss after each, outside its step time.
  std::function<void(int step, double loss)> on_step;
  int threads = 1;  ///< that compute, per rank
  /// Looks at the machine about twice a second between steps, for which the ranks meet; else once, after the last
  /// one, as where ranks wait instead of computing.
  bool watches_machine = true;
  std::set<int> shown_steps{};  ///< measured ones, from 0 on, for Result::shown
};

/// Runs warm-up and measured steps; all ranks call it. Steps follow each other without a barrier, except for
/// one before the first measured step.
///
/// Returns the Result without context, lineage and configuration, complete at rank 0: the step times of all
/// ranks, the spans of the step whose slowest rank is the median, the median over the steps of every part of
/// the breakdown, the peak memory of the measured steps, and the loss averaged over the ranks that compute it.
/// The machine beside the steps is that of the rank that was given least: its slowest probe, and what others took; and of
/// steps from kLongStepS on what they would have taken had others left the cores alone.
/// Other ranks receive the step times alone. Spans of a step count from its start at rank 0; clocks of other
/// hosts are compared with rank 0's before the first and after the last step (clock_alignment.hpp), and the
/// Result's note `clocks` tells how well they are known. \param schedule names the operations of the stamps
/// \throws RunError that names a rank that was lost
Result run_steps(SteppedProgram& program, const Schedule& schedule, RankSession& session,
                 const StepLoop& loop);

/// Which gradients travel together, in the order in which the buckets are reduced, as one line of JSON:
///
///     [{"bytes":5172,"tensors":["fc2.bias","fc2.weight"]},{"bytes":...
///
/// Bytes are those of the gradients, tensors stand in their order within the bucket. Equal layouts give equal
/// text, so that runs of different engines are compared by it.
std::string bucket_layout(const Model& model, const std::vector<Bucket>& buckets);

}  // namespace stepcast
