#pragma once

#include <string>

#include "sim/replay/environment.hpp"
#include "sim/replay/workload.hpp"
#include "sim/strategies/strategy.hpp"

/// A forecast of a training step, in steps that each resolve one thing:
///
///     PredictionRequest -> Workload (model, device, costs)
///                       -> PredictionEnvironment (cluster, calibration, communication library)
///                       -> Schedule -> replay -> Result
namespace stepcast {

/// Steps to replay; `shown_steps` are of the first replica.
struct ReplayRequest : ReplayRun {
  ReplayRequest() : ReplayRun{.steps = 12, .warmup_steps = 2, .resample = true, .seed = 1} {}
  int replicas = 1;  ///< replays with seeds seed, seed + 1, ...; their steps are pooled
  /// Forecasts `run --compute replayed`: ranks wait for median traced times, without a core or memory
  /// bandwidth.
  bool compute_waits = false;
  std::optional<HostWaits> host_waits{};  ///< unset: as in the trace's profile, else step
};

/// Question of `predict`, `plan` and studies.
struct PredictionRequest {
  std::string strategy;
  TrainingConfig training;       ///< its batch is set from `costs.batch`
  bool gradients_freed = false;  ///< zero_grad() frees gradients, and each backward allocates them
  CostRequest costs{};
  EnvironmentRequest environment{};
  ReplayRequest replay{};
  ResourceScales scale{};
  bool brief = false;            ///< without spans, per-step details, notes and baselines
  KnownInputs* known = nullptr;  ///< inputs that earlier forecasts loaded, to which this one adds
};

/// Schedule of a request. It depends on the model, the strategy and its options, and with `--split balanced`
/// on the costs: forecasts that differ in nothing else can share it. \throws UsageError for too many
/// operations
Schedule resolve_schedule(const PredictionRequest& request, const Workload& workload);

/// Replays the schedule and reports: configuration, lineage, notes and seed. The command adds the rest of the
/// context.
Result replay_schedule(const PredictionRequest& request, Workload workload,
                       PredictionEnvironment& environment, const Schedule& schedule);

/// Resolves a request and replays it; also `single` on one rank, for the baselines. A strategy that does not
/// train has no model and no baselines of training. With a device, `notes["device"]` describes the move or
/// the estimate, and `notes["memory"]` warns of a peak beyond its memory. \throws UsageError, InputError as
/// resolve_workload() and resolve_environment()
Result predict(const PredictionRequest& request);

}  // namespace stepcast
