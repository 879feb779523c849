#pragma once

#include <algorithm>
#include <vector>

#include "records/result.hpp"
#include "sim/plan/bounds.hpp"

namespace stepcast {

/// Forecast of `predict` for a plan. If micro-batches fill more than twelve rounds (a round has one per
/// pipeline rank), three and four rounds are replayed; every further round takes and holds what the fourth
/// one adds. Twice as many rounds are replayed while that is less than the time for which the busiest rank is
/// busy in a round (others have slack from the start), or more and still changing by 0.1 % of the step.
struct PlanForecast {
  double step_s = 0.0;
  double samples_per_s = 0.0;
  double mfu = 0.0;                          ///< fraction of peak flop/s; 0 if the device is not a GPU
  double memory_bytes = 0.0;                 ///< of the process (CPUs: allocated), of the fullest rank
  double reserved_bytes = 0.0;               ///< by PyTorch's allocator, of the rank with most; CPUs: 0
  Breakdown mean{};                          ///< over the ranks
  double operations = 0.0;                   ///< replayed
  std::vector<double> stage_memory_bytes{};  ///< by pipeline stage; one value without a pipeline
  /// Part of the step in which a rank is idle. Extrapolated from few micro-batches, it contains the time of
  /// the launch thread in no operation, which begins after many.
  [[nodiscard]] double bubble() const { return std::max(0.0, mean.idle_s / mean.step_s()); }
};

/// Numbers of a plan's replays, which another process can return. \throws Error as predict()
std::vector<double> replayed_numbers(PlanModels& models, const Plan& plan);
/// \param numbers of its replays \param memory_bound of the plan
PlanForecast forecast_of(PlanModels& models, const Plan& plan, const std::vector<double>& numbers,
                         double memory_bound);

}  // namespace stepcast
