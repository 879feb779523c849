#pragma once

#include <string>
#include <vector>

#include "runner/launch/launch.hpp"

/// Binding of ranks to processor cores, as `mpirun --bind-to core` does.
namespace stepcast {

/// The cores that this process may use.
std::vector<int> usable_cores();

/// The cores of `local_rank` when `local_world_size` ranks divide `cores` evenly: rank r has cores
/// [r k, (r + 1) k) with k = floor(cores / ranks). Empty when there are fewer cores than ranks: nobody is
/// bound.
std::vector<int> cores_of_rank(const std::vector<int>& cores, int local_rank, int local_world_size);

/// Binds this process, and every thread that it starts from now on, to its share of the cores it may use. All
/// its threads, computing and communicating, then share those cores and no others, so that a launch does not
/// depend on where the scheduler happens to put them: unbound, small messages of one launch were measured to
/// take twice as long as those of the next. \param policy `core` or `none`. \returns what was done:
/// `core` or `none`. \throws UsageError for another policy \pre no thread exists yet
std::string bind_rank(const std::string& policy, const RankContext& ranks);

}  // namespace stepcast
