#pragma once

#include <vector>

#include "records/phase_costs.hpp"
#include "records/result.hpp"
#include "sim/replay/rank_run.hpp"

namespace stepcast {

/// Memory of a rank over one step, from the times of its operations: what it holds all the time, what
/// operations allocate and free (`Op::memory`), and the workspace of each, which counts as activations (of an
/// optimizer, as its state). Holds: at the end of the step exactly what is held all the time is left.
MemoryUse memory_use(int rank, const Schedule& schedule, const std::vector<OpTimes>& times,
                     const PhaseCosts& costs, double step_start);

}  // namespace stepcast
