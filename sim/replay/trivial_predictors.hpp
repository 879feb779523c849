#pragma once

#include <optional>

#include "core/units.hpp"
#include "records/calibration.hpp"
#include "schedule/schedule.hpp"
#include "sim/replay/replay.hpp"
#include "topologies/paths.hpp"

/// Baselines that need no simulator. Every accuracy table contains them.
namespace stepcast {

/// T(n) = alpha + n beta of one message.
struct AlphaBeta {
  double alpha_s = 0.0;
  double beta_s_per_byte = 0.0;
  [[nodiscard]] Seconds time(Bytes message) const {
    return Seconds(alpha_s + beta_s_per_byte * message.count());
  }
};

/// Straight line through the knots of `cost` with the least squared relative error, alpha and beta at least
/// 0. For one knot, alpha is its time.
AlphaBeta fit_alpha_beta(const PiecewiseCost& cost);

/// Line of one message between two ranks: fitted to the endpoint's latency table, plus two hops over the
/// cluster's slowest link if it has links; between GPUs, plus the path from the cluster's first GPU to its
/// last.
AlphaBeta message_line(const Calibration* calibration, Routes& routes);

/// `single` plus the alpha-beta times of all collectives and messages of rank 0, without overlap: closed
/// forms of the ideal algorithms, 0 for one rank.
Seconds alpha_beta_step_time(const Schedule& schedule, const AlphaBeta& line, Seconds single);

/// Baseline with overlap and without a network. Compute takes the median costs, on the slowest of the hosts;
/// collective k has array k and starts when it is ready and the one before has ended,
///
///     start_k = max(ready_k, end_(k-1)),  end_k = start_k + alpha-beta time(k)
///
/// ready_k is the end of what it comes after: for a DDP bucket the copy of its last gradient, at that
/// gradient's measured time in its backward. Compute that comes after a collective (a gathered unit, the
/// optimizer) waits for its end. The step ends with its last operation and the unattributed host time.
/// Memory-bound kernels cost their calibrated time, or that of a GPU's memory. Ranks never wait for each
/// other, nothing shares a link or a core, several collectives in flight queue. Nothing if ranks exchange
/// messages or copies between memories, or do not communicate.
std::optional<Seconds> overlap_step_time(const ReplayInput& input, const AlphaBeta& line);

}  // namespace stepcast
