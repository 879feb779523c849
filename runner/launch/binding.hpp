#pragma once

#include <string>
#include <vector>

#include "runner/launch/launch.hpp"

/// CPU binding of the threads of a rank, as by `mpirun --bind-to core`, and their scheduling policy.
namespace stepcast {

/// The cores of `local_rank` when `local_world_size` ranks divide `cores` evenly: rank r has cores [r k, (r +
/// 1) k) with k = floor(cores / ranks). Empty if there are fewer cores than ranks: no rank is bound.
std::vector<int> cores_of_rank(const std::vector<int>& cores, int local_rank, int local_world_size);

/// Binds this process, and every thread that it starts from now on, to its share of the usable cores. All its
/// threads share those cores and no others, so that a launch does not depend on the scheduler's placement:
/// without binding, small messages of one launch took twice as long as those of the next. \param policy
/// `core` or `none`. \returns the binding: `core` or `none`. \throws UsageError for another policy \pre no
/// thread exists yet
std::string bind_rank(const std::string& policy, const RankContext& ranks);

/// Sets the policy of this process and of every thread that it starts from now on:
///
///     batch   SCHED_BATCH: a thread that wakes up waits for a free core or the end of another thread's slice
///     normal  SCHED_OTHER, the default of programs: a thread that wakes up may preempt another
///
/// Gloo needs `batch`. Its loop thread takes a connection's lock by try_lock and polls again at once if that
/// fails (gloo/transport/tcp/pair.cc, handleEvents). If it has preempted the holder of that lock, it spins
/// until its slice ends: 3 to 4 ms without progress. Exposed all-reduces of a step on two cores, 2 ranks:
/// ResNet-18 90 ms with `normal`, 33 ms with `batch`; SimpleCNN 9.5 ms and 1.6 ms.
///
/// \returns the policy in effect: `normal` if the system does not allow `batch`. \throws UsageError for
/// another policy \pre no thread exists yet
std::string set_scheduling(const std::string& policy);

}  // namespace stepcast
