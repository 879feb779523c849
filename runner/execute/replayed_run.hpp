#pragma once

#include <string>

#include "models/model.hpp"
#include "records/phase_costs.hpp"
#include "records/result.hpp"
#include "runner/backend/session.hpp"
#include "runner/execute/rank_report.hpp"
#include "schedule/schedule.hpp"

/// Executes a Schedule whose compute is replaced by waiting.
namespace stepcast {

struct ReplayedRunOptions : StepLoop {
  bool resample = false;  ///< every rank draws measured steps, see ReplayedProgram
  unsigned seed = 1;      ///< of the draws
  double samples = 1.0;   ///< of a micro-batch
  /// Of this rank: 0.5 takes twice the times. Ranks may differ (stragglers); the Result notes the slowest.
  double speed = 1.0;
};

/// The times that a Schedule's compute takes: those of one micro-batch in a trace, `StepContext::kWaiting`
/// where the ranks communicate and `StepContext::kAccumulating` for micro-batches that follow another, as a
/// prediction takes them; of a model that declares its times, without a trace, those.
/// \param trace path; may be empty where the model declares its times
/// \throws UsageError without one where it does not; InputError for a trace of another model, batch or number
/// of threads
PhaseCosts step_times_of(const Model& model, const Schedule& schedule, const std::string& trace, int batch,
                         int threads);

/// Runs warm-up and measured steps of this rank's program; all ranks of the job call it. The Result is that
/// of `run_steps` without loss and memory, since nothing is trained. \throws CapabilityError for operations
/// that are not executed; RunError that names a rank that was lost
Result run_replayed(const Model& model, const Schedule& schedule, RankSession& session,
                    const PhaseCosts& times, const ReplayedRunOptions& options);

}  // namespace stepcast
