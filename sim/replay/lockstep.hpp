#pragma once

#include <functional>

#include "sim/collectives/algorithm.hpp"
#include "sim/records/calibration.hpp"

namespace stepcast {

/// The wire beneath one rank's messages: alpha and bandwidth to its successor; no bandwidth on one host.
struct WireCost {
  double latency_s = 0.0;
  double bandwidth_bytes_per_s = 0.0;
  double extra_bytes = 0.0;    ///< per message: preamble
  double at_once_bytes = 0.0;  ///< that token buckets let pass after a pause
};

/// One rank's share of a ring if all ranks do the same at the same time.
struct LockstepCost {
  double seconds = 0.0;      ///< from joining to the end of its last step
  double cpu_seconds = 0.0;  ///< processor time of its engine and its reductions
};

/// Time and processor work of rank `index` in a ring whose ranks keep step, with the endpoint costs of one
/// path class: the recurrence that MessageRun and Transport would go through if nobody disturbed them, for
/// one rank instead of all. Exact when all messages of a step are equal, on all ranks, and the host has cores
/// to spare.
LockstepCost lockstep_cost(const Algorithm& algorithm, const CollectiveCall& call, int index,
                           const PathCost& path, const Calibration& calibration, const WireCost& wire);

}  // namespace stepcast
