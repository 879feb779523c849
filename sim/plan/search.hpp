#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "records/result.hpp"
#include "sim/plan/bounds.hpp"
#include "sim/plan/space.hpp"

/// Search for the best plans: bounds exclude plans, replays rank the others.
namespace stepcast {

/// Forecast of `predict` for a plan. If micro-batches fill more than twelve rounds (a round has one per
/// pipeline rank), three and four rounds are replayed; every further round takes and holds what the fourth
/// one adds.
struct PlanForecast {
  double step_s = 0.0;
  double samples_per_s = 0.0;
  double mfu = 0.0;                          ///< fraction of peak flop/s; 0 if the device is not a GPU
  double memory_bytes = 0.0;                 ///< of the rank that holds most
  Breakdown mean{};                          ///< over the ranks
  double operations = 0.0;                   ///< replayed
  std::vector<double> stage_memory_bytes{};  ///< by pipeline stage; one value without a pipeline
  [[nodiscard]] double bubble() const;
};

struct PlanRecord {
  Plan plan{};
  PlanBound bound{};
  std::string name{};  ///< of a user's plan; else empty
  std::optional<PlanForecast> forecast{};
  std::string error{};  ///< error of `predict`; else empty
  bool fits = false;    ///< in device memory less the reserve
};

/// Numbers of plans. They depend on the inputs alone, never on time.
struct PlanCounts {
  std::size_t enumerated = 0, too_large = 0, too_slow = 0, replayed = 0, failed = 0;
  double operations = 0.0;  ///< replayed
};

/// Plans that could be better by at most this fraction are not replayed.
constexpr double kPlanSlack = 0.005;

/// Operations of an average replay, about 0.1 s. If replays are longer, there are fewer of them.
constexpr double kReplayOperations = 6e4;

struct PlanRequest {
  std::size_t best = 5;  ///< least number of ranked plans; the first is proven best but for kPlanSlack
  std::size_t most_replays = 500;        ///< of kReplayOperations each
  std::vector<PlanRecord> user_plans{};  ///< ranked with the others, whatever their bounds
  bool everything = false;               ///< replay every plan, with all refinement values
};

struct PlanOutcome {
  std::vector<PlanRecord> plans;  ///< first the replayed plans that fit, best first; then all others
  std::size_t ranked = 0;         ///< number of plans that fit
  PlanCounts counts;
  /// Least score bound of the plans that the replay budget excluded though they could be the best. None: the
  /// first plan is proven best.
  std::optional<double> open_score;
  double bounds_s = 0.0, replays_s = 0.0;  ///< wall-clock time of the search itself
};

/// The number that the problem minimises: seconds, device-seconds or joules.
double score(const PlanModels& models, const Plan& plan, double step_s);

/// Replays plans in ascending order of their bounds until none is below (1 - kPlanSlack) of the best score
/// found; then refines the best.
PlanOutcome search_plans(PlanModels& models, PlanBounds& bounds, const PlanRequest& request);

/// Least number of ranks, doubled from those of the problem, on which the memory bound of some plan fits; 0:
/// none.
int ranks_that_fit(const PlanProblem& problem);

}  // namespace stepcast
