#pragma once

#include <cstddef>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "sim/plan/forecast.hpp"
#include "sim/plan/launch.hpp"
#include "sim/plan/space.hpp"

/// Search for the best plans: bounds exclude plans, replays rank the others.
namespace stepcast {

struct PlanRecord {
  Plan plan{};
  PlanBound bound{};
  std::string name{};  ///< of a user's plan; else empty
  std::optional<PlanForecast> forecast{};
  std::string error{};  ///< error of `predict`; else empty
  bool fits = false;    ///< in device memory less the reserve
};

/// Numbers of plans. They depend on the inputs alone unless a time limit ended the search.
struct PlanCounts {
  std::size_t enumerated = 0, excluded = 0, too_large = 0, too_slow = 0, replayed = 0, failed = 0;
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
  const Launcher* only = nullptr;        ///< program that can run all plans but those of the user
  double time_limit_s = std::numeric_limits<double>::infinity();  ///< no new replays later, once a plan fits
};

struct PlanOutcome {
  std::vector<PlanRecord> plans;  ///< first the replayed plans that fit, best first; then all others
  std::size_t ranked = 0;         ///< number of plans that fit
  PlanCounts counts;
  /// Least score bound of the plans that the replay budget or the time limit excluded though they could be
  /// the best. None: the first plan is proven best.
  std::optional<double> open_score;
  bool timed_out = false;                  ///< the time limit excluded plans
  double bounds_s = 0.0, replays_s = 0.0;  ///< wall-clock time of the search itself
};

/// The number that the problem minimises, per step: seconds, device-seconds or joules.
double score(const PlanModels& models, const Plan& plan, double step_s);

/// Replays plans in ascending order of their bounds until none is below (1 - kPlanSlack) of the best score
/// found; then refines the best. A plan that does not fit is replaced by its smaller_plans().
PlanOutcome search_plans(PlanModels& models, PlanBounds& bounds, const PlanRequest& request);

/// Least number of ranks, doubled from those of the problem, on which the memory bound of some plan fits; 0:
/// none.
int ranks_that_fit(const PlanProblem& problem);

/// Reads plans of the user: a YAML list of maps of options of `stepcast predict`, each with an optional
/// `name`:
///
///     - {name: ours, strategy: fsdp, mesh: "shard=8,tensor=4", micro-batches: 4, recompute: full}
///     - {strategy: pipeline, mesh: "pipeline=4,data=2,tensor=4", model: "llama3-8b:sequence_parallel=1"}
///
/// The problem sets the batches. Ranks that a mesh leaves open are data-parallel (for a pipeline: stages).
/// \throws InputError that names file, line and key
std::vector<PlanRecord> load_user_plans(const std::string& path, const PlanProblem& problem);

}  // namespace stepcast
