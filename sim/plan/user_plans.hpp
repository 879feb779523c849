#pragma once

#include <string>
#include <vector>

#include "sim/plan/search.hpp"

namespace stepcast {

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
