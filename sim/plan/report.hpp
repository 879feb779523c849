#pragma once

#include <string>

#include "sim/plan/search.hpp"

/// Results of a search as text, CSV and JSON.
namespace stepcast {

/// The ranked table, at most `lines` plans and all user plans, and why each is behind the best.
std::string ranking_text(PlanModels& models, const PlanOutcome& outcome, std::size_t lines);
/// Why no plan is recommended: the plan with the least memory, the memory that it lacks, and how many ranks
/// may suffice.
std::string nothing_fits_text(PlanModels& models, const PlanBounds& bounds, const PlanOutcome& outcome);
/// `1,284 plans: 731 too large, ...`, and whether the best is proven.
std::string counts_text(PlanModels& models, const PlanOutcome& outcome);

/// A line per plan: dimensions, bounds, forecast and status.
std::string plans_csv(const PlanOutcome& outcome);
/// JSON lines, each with the plan's options of `stepcast predict`.
std::string plans_json_lines(const PlanProblem& problem, const PlanOutcome& outcome);

}  // namespace stepcast
