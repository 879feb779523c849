#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "records/result.hpp"
#include "sim/plan/bounds.hpp"
#include "sim/plan/space.hpp"

/// The best plans: bounds say which need not be looked at, the replay decides among the rest.
namespace stepcast {

/// What `predict` says of a plan. Of more than twelve rounds of micro-batches, as many as a pipeline has ranks each, it is asked
/// with three rounds and with four; every further round takes, and keeps, what the fourth does.
struct PlanForecast {
  double step_s = 0.0;
  double samples_per_s = 0.0;
  double mfu = 0.0;                          ///< part of the peak rate; 0 where the device is no GPU
  double memory_bytes = 0.0;                 ///< of the rank that holds most
  Breakdown mean{};                          ///< over the ranks
  double operations = 0.0;                   ///< that were replayed
  std::vector<double> stage_memory_bytes{};  ///< of a pipeline's stages; else of all ranks
  [[nodiscard]] double bubble() const;
};

struct PlanRecord {
  Plan plan{};
  PlanBound bound{};
  std::string name{};  ///< of a plan of somebody's own
  std::optional<PlanForecast> forecast{};
  std::string refusal{};  ///< why `predict` answers nothing
  bool fits = false;      ///< with the reserve
};

/// Counted, not timed: equal inputs give equal outputs.
struct PlanCounts {
  std::size_t enumerated = 0, too_large = 0, too_slow = 0, replayed = 0, refused = 0;
  double operations = 0.0;  ///< that were replayed
};

/// Plans that could be better by no more than this are not looked at.
constexpr double kPlanSlack = 0.005;

/// What a replay may take on average, about 0.1 s: of longer ones there are fewer.
constexpr double kReplayOperations = 6e4;

struct PlanRequest {
  std::size_t best = 5;  ///< that are ranked at least; the first is proven to be the best, but for kPlanSlack
  std::size_t most_replays = 500;  ///< of up to kReplayOperations each
  std::vector<PlanRecord> own{};   ///< ranked beside the others, whatever their bounds
  bool everything = false;         ///< replay every plan, of finalists' dimensions too
};

struct PlanOutcome {
  std::vector<PlanRecord> plans;  ///< those that were replayed and fit first, best first; then all others
  std::size_t ranked = 0;         ///< how many of them fit
  PlanCounts counts;
  /// The least score of a plan that was not replayed though its bound promises more than the best; none: the best is
  /// proven to be.
  std::optional<double> open_score;
  double bounds_s = 0.0,
         replays_s = 0.0;  ///< that finding bounds and replaying took; of the machine, not of the plans
};

/// What the problem makes least of: seconds, device-seconds or joules.
double score(const PlanProblem& problem, const DeviceModel& device, const Plan& plan, double step_s);

/// Best bound first, until no bound is below (1 - kPlanSlack) of the best found. Then variants of the best.
PlanOutcome search_plans(PlanModels& models, PlanBounds& bounds, const PlanRequest& request);

/// The fewest ranks, doubling them from those that there are, on which some plan's bound of memory fits; 0: none does.
int ranks_that_fit(const PlanProblem& problem);

}  // namespace stepcast
