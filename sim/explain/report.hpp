#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "sim/explain/difference.hpp"
#include "sim/explain/explanation.hpp"

/// Explanations in words, tables and JSON.
namespace stepcast {

inline constexpr const char* kExplainSchema = "stepcast.explain/1";

/// What a table calls a rank: `3`, `3 and 7 like it`, and of a pipeline its stage.
std::string rank_name(const Recording& recording, int rank);

/// \param more of each resource: 1.1
std::string explanation_text(const Explanation& explanation, double more);
nlohmann::json explanation_json(const Explanation& explanation, double more);

std::string differences_text(const StepDifferences& differences);
nlohmann::json differences_json(const StepDifferences& differences);

}  // namespace stepcast
