#pragma once

#include <string>
#include <vector>

#include "runner/launch/launch.hpp"

/// Where and when the threads of a rank run: bound to processor cores, as `mpirun --bind-to core` does, and under
/// which policy of the operating system.
namespace stepcast {

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

/// Sets the policy of this process and of every thread that it starts from now on:
///
///     batch   Linux's SCHED_BATCH: a thread that wakes up waits for a core that is free or whose thread's
///     slice
///             is over
///     normal  SCHED_OTHER, what every program has by default: a thread that wakes up may push another aside
///
/// Gloo needs `batch`. Its loop thread takes a connection's lock by try_lock and asks epoll again, at once,
/// when that fails (gloo/transport/tcp/pair.cc, handleEvents). When the loop thread has pushed the holder of
/// that lock aside, on the holder's own core, it spins until its slice is over: 3 to 4 ms in which nothing
/// moves. Measured on two cores, 2 ranks, the exposed all-reduces of a step: ResNet-18 90 ms with `normal`,
/// 33 ms with `batch`; SimpleCNN 9.5 ms and 1.6 ms.
///
/// \returns the policy that now holds: `normal` where the system refuses. \throws UsageError for another
/// policy \pre no thread exists yet
std::string set_scheduling(const std::string& policy);

}  // namespace stepcast
