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

/// Runs the steps of one rank, records when its operations ran, and makes one Result of the records of all
/// ranks.
namespace stepcast {

/// Begin and end of an operation.
struct Stamp {
  std::chrono::steady_clock::time_point start, end;
};

/// Times of the computing thread in one step.
struct ComputingTime {
  double wall_s = 0.0;    ///< operations that compute, without waiting for other ranks
  double lost_s = 0.0;    ///< part of it in which this process did not run
  double queued_s = 0.0;  ///< run-queue delay of this process's threads while it waits for other ranks
};

/// Step time without interference from other processes:
///
///     max_i (wall_i - lost_i)  +  max(0, max_i step_i - max_i wall_i - max(0, sum_i queued_i - own))
///
/// The rank with most to compute waits least, and only for messages. These stop while a thread that they need
/// waits for a core. Threads of one rank also wait for each other: `own` is the least such delay of a step of
/// the run, at most 4 % of a step (2 to 4 % were measured without other processes, for VGG-11 on two ranks
/// with a core each). Without lost time it is the longest step of a rank. Too large if ranks meet several
/// times in a step, because waiting for a rank that was interrupted between two meetings counts as messages.
/// Delays of the kernel's own threads are not seen. Too small if many threads wait for a core at once. \pre a
/// step and a computing time per rank
double step_without_interference_s(const std::vector<double>& step_s,
                                   const std::vector<ComputingTime>& computing, double own_queued_s = 0.0);

/// The work of one rank in every step.
class SteppedProgram {
 public:
  virtual ~SteppedProgram() = default;
  /// Called before and after each step, outside its step time.
  virtual void prepare() {}
  virtual void settle() {}
  /// Runs the next step and returns its stamps, one per operation. Complete after settle(), valid until the
  /// next call.
  virtual const std::vector<Stamp>& step() = 0;
  /// Measures computing() from the next step on, if this program can. Costs some microseconds per operation.
  virtual void measure_computing() {}
  /// Times of the latest step; nothing if they are not measured.
  [[nodiscard]] virtual std::optional<ComputingTime> computing() const { return std::nullopt; }
  /// Loss of the latest step, mean over the micro-batches; 0 on a rank that computes none.
  [[nodiscard]] virtual double loss() const { return 0.0; }
  /// Bytes that this rank sends in one step; nothing: as the session's backend counts.
  [[nodiscard]] virtual std::optional<std::uint64_t> bytes_sent() const { return std::nullopt; }
  /// Peak memory of tensors since the last forget_peak(), counted by memory_account.hpp unless a device
  /// counts it.
  virtual void forget_peak() { memory_account().forget_peak(); }
  [[nodiscard]] virtual MemoryBytes peak() const { return memory_account().peak(); }
};

/// Steps of a run.
struct StepLoop {
  int steps = 30, warmup_steps = 5;
  std::set<int> shown_steps{};  ///< measured steps, from 0 on, for Result::shown
  int threads = 1;              ///< compute threads per rank
  /// True: the ranks meet about twice a second between steps to record the machine's state. False: once,
  /// after the last step, for ranks that wait instead of computing.
  bool watches_machine = true;
  /// Called on every rank with the step (warm-up is negative) and its loss after each, outside its step time.
  std::function<void(int step, double loss)> on_step = [](int, double) {};
};

/// Runs warm-up and measured steps; all ranks call it. There is no barrier between steps, except before the
/// first measured one.
///
/// Returns the Result without context, lineage and configuration, complete at rank 0: the step times of all
/// ranks, the spans of the step whose slowest rank is the median, the median over the steps of every part of
/// the breakdown, the peak memory of the measured steps, and the loss averaged over the ranks that compute
/// it. The machine's state is that of the rank that lost most CPU time, with the slowest probe; for steps
/// from kLongStepS on it includes step times without interference. Other ranks receive only the step times.
/// Spans count from the step's start at rank 0. Clocks of other hosts are compared with rank 0's before the
/// first and after the last step (clock_alignment.hpp); the note `clocks` contains their error. \param
/// schedule names the operations of the stamps \throws RunError that names a lost rank
Result run_steps(SteppedProgram& program, const Schedule& schedule, RankSession& session,
                 const StepLoop& loop);

/// Gradient buckets in order of reduction, as one line of JSON:
///
///     [{"bytes":5172,"tensors":["fc2.bias","fc2.weight"]},{"bytes":...
///
/// Bytes are those of the gradients, tensors are in the order of the bucket. Equal layouts give equal text,
/// so that runs of different engines can be compared.
std::string bucket_layout(const Model& model, const std::vector<Bucket>& buckets);

}  // namespace stepcast
