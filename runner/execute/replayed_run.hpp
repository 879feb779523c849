#pragma once

#include <functional>
#include <string>

#include "models/model.hpp"
#include "runner/backend/session.hpp"
#include "sim/records/result.hpp"
#include "sim/records/step_times.hpp"
#include "sim/schedule/schedule.hpp"

/// Executes a Schedule whose computing only waits: see replayed_program.hpp.
namespace stepcast {

struct ReplayedRunOptions {
  int steps = 30;
  int warmup_steps = 5;
  /// Every rank draws a measured step for each micro-batch of each step, whose phases it takes together,
  /// instead of the median of each phase.
  bool resample = false;
  unsigned seed = 1;  ///< of the draws
  /// Of this rank: 0.5 takes twice the times. Ranks may differ (stragglers); the Result notes the slowest.
  double speed = 1.0;
  /// Called on every rank after each step, outside its step time; warm-up is negative.
  std::function<void(int step)> on_step = [](int) {};
};

/// The times that a Schedule's compute takes: those of one micro-batch in a trace, `Pace::kWaiting` where the
/// ranks communicate and `Pace::kAccumulating` for micro-batches that follow another, as a prediction takes
/// them; of a model that declares its times, without a trace, those.
/// \param trace path; may be empty where the model declares its times
/// \throws UsageError without one where it does not; InputError for a trace of another model, batch or number
/// of threads
StepTimes step_times_of(const Model& model, const Schedule& schedule, const std::string& trace, int batch,
                        int threads);

/// Runs warm-up and measured steps of this rank's program; all ranks of the job call it. The Result is that
/// of `run_schedule` without loss and memory, since nothing is trained. \throws CapabilityError for
/// operations that are not executed; RunError that names a rank that was lost
Result run_replayed(const Model& model, const Schedule& schedule, RankSession& session,
                    const StepTimes& times, const ReplayedRunOptions& options);

}  // namespace stepcast
