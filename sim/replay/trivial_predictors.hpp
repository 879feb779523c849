#pragma once

#include <optional>

#include "core/units.hpp"
#include "records/calibration.hpp"
#include "schedule/schedule.hpp"
#include "sim/replay/replay.hpp"
#include "topologies/cluster.hpp"

/// Predictors too simple to need a simulator. Every accuracy table stands beside them.
namespace stepcast {

/// T(n) = alpha + n beta of one message.
struct AlphaBeta {
  double alpha_s = 0.0;
  double beta_s_per_byte = 0.0;
};

/// The straight line through the knots of `cost` with the least squared relative error, alpha and beta at
/// least 0. One knot gives its time as alpha.
AlphaBeta fit_alpha_beta(const PiecewiseCost& cost);

/// The line of one message between two ranks: fitted to the endpoint's latency table, plus, where the cluster
/// has links, two hops over its slowest link; between GPUs, the way from the first to the last of the
/// cluster.
AlphaBeta message_line(const Calibration* calibration, Routes& routes);

/// Time of one collective that has the network to itself: the closed form of the ideal algorithm of its kind.
/// Reduction arithmetic, processor time and contention are left out. Holds: 0 for one rank.
Seconds alpha_beta_time(const Collective& collective, int group_size, const AlphaBeta& line);

/// `single` plus the alpha-beta time of every collective and message that rank 0 issues, nothing overlapped.
Seconds alpha_beta_step_time(const Schedule& schedule, const AlphaBeta& line, Seconds single);

/// The fair rival of a replay: overlap, but no network. Compute is the trace's medians, on the slowest of the hosts;
/// collective k has array k and starts when it is ready and the one before has ended,
///
///     start_k = max(ready_k, end_(k-1)),  end_k = start_k + alpha_beta_time(k)
///
/// ready_k being the end of what it comes after: of a DDP bucket the copy of its last gradient, at that gradient's
/// measured place in its backward. Compute that comes after a collective (a gathered unit, the optimizer) waits for
/// its end; the step ends with its last operation and the host's rest. Passes over arrays cost what is calibrated, or a GPU's memory.
/// Ranks never wait for each other, nothing shares a link or a core, several collectives in flight queue.
/// Nothing where ranks exchange messages or copies between memories, or nothing at all.
std::optional<Seconds> overlap_step_time(const ReplayInput& input, const AlphaBeta& line);

}  // namespace stepcast
