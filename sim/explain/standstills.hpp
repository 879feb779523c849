#pragma once

#include <map>
#include <utility>
#include <vector>

#include "sim/replay/recording.hpp"

namespace stepcast {

/// Time for which the main thread of `rank` waits until `for_rank` joins. `because_of` is the rank at the
/// end of the chain: the rank that `for_rank` waits for meanwhile, and so on. Covers all replayed ranks, on
/// the critical path or not.
struct Standstill {
  int rank = 0;
  int for_rank = 0;
  int because_of = 0;
  double time_s = 0.0;
};

/// All standstills, longest first. Waits for links and for messages in flight are left out.
std::vector<Standstill> standstills(const Recording& recording);
/// The rank that causes the longest standstills of others, and their sum in seconds. \pre not empty
std::pair<int, double> most_waited_for(const std::vector<Standstill>& standstills);

/// Compute time of each replayed rank in the step, s.
std::map<int, double> computing(const Recording& recording);

}  // namespace stepcast
