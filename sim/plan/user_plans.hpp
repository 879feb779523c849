#pragma once

#include <string>
#include <vector>

#include "sim/plan/search.hpp"

namespace stepcast {

/// Plans of somebody's own: a YAML list of maps of options of `stepcast predict`, and each may have a `name`:
///
///     - {name: ours, strategy: fsdp, mesh: "shard=8,tensor=4", micro-batches: 4, recompute: full}
///     - {strategy: pipeline, mesh: "pipeline=4,data=2,tensor=4", model: "llama3-8b:sequence_parallel=1"}
///
/// Batches follow from the problem's; ranks that a mesh does not give away are data-parallel (a pipeline's: its stages).
/// \throws InputError that names file, line and key
std::vector<PlanRecord> load_own_plans(const std::string& path, const PlanProblem& problem);

}  // namespace stepcast
