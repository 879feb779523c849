#pragma once

#include <vector>

#include "records/result.hpp"
#include "sim/replay/costs.hpp"
#include "sim/replay/rank_run.hpp"

namespace stepcast {

/// The bytes that a rank holds over one step, from when its operations ran: what it holds all the time, what
/// operations take and give up (`Op::memory`), and what each needs while it runs, which counts as activations
/// (of an optimizer, as its state).
/// Holds: at the end of the step exactly what is held all the time is left.
MemoryUse memory_use(int rank, const Program& program, const std::vector<OpDates>& dates, const Costs& costs,
                     double step_start);

}  // namespace stepcast
