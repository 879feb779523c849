#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "sim/explain/difference.hpp"
#include "sim/explain/explanation.hpp"

/// Explanations as text, tables and JSON.
namespace stepcast {

inline constexpr const char* kExplainSchema = "stepcast.explain/1";

/// Sums over the critical path.
struct PathTable {
  std::string name;      ///< `operation`, `layer`, `link`, `stage` or `rank`
  Contributions rows;    ///< largest first; empty if it does not apply
  bool repeats = false;  ///< contains nothing that another table lacks
};
/// All tables, that of operations first.
std::vector<PathTable> path_tables(const Explanation& explanation);

/// Name of a rank in tables: `3`, or `3 and 7 like it` if it represents others; in a pipeline with its stage.
std::string rank_name(const Recording& recording, int rank);

/// \param more factor by which each resource was scaled, such as 1.1
std::string explanation_text(const Explanation& explanation, double more);
nlohmann::json explanation_json(const Explanation& explanation, double more);

std::string differences_text(const StepDifferences& differences);
nlohmann::json differences_json(const StepDifferences& differences);

}  // namespace stepcast
