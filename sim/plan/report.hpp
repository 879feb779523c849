#pragma once

#include <string>

#include "sim/plan/search.hpp"

/// What a search found, for people and for other programs.
namespace stepcast {

/// The ranked table, at most `lines` plans and all own ones; and why each is behind the best.
std::string ranking_text(PlanModels& models, const PlanOutcome& outcome, std::size_t lines);
/// Why nothing is recommended: the plan that needs least memory, what it lacks, and how many ranks would do.
std::string nothing_fits_text(PlanModels& models, const PlanBounds& bounds, const PlanOutcome& outcome);
/// `1,284 plans: 731 too large, ...`, and whether the best is proven.
std::string counts_text(PlanModels& models, const PlanOutcome& outcome);

/// A line per plan: its dimensions, its bounds, its forecast, and what became of it.
std::string plans_csv(const PlanOutcome& outcome);
/// The same as JSON, each plan with the options of `stepcast predict`.
std::string plans_json_lines(const PlanProblem& problem, const PlanOutcome& outcome);

}  // namespace stepcast
