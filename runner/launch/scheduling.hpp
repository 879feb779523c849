#pragma once

#include <string>

/// The policy by which the operating system schedules the threads of a rank.
namespace stepcast {

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
