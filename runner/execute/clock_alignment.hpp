#pragma once

#include <functional>

#include "core/clocks.hpp"
#include "runner/backend/session.hpp"

/// Offsets of the steady clocks of other hosts from rank 0's, so that spans of different hosts fit into one
/// timeline.
namespace stepcast {

/// Seconds of some steady clock.
using ClockReading = std::function<double()>;

/// One comparison of a rank's own clock with rank 0's.
struct ClockOffset {
  double at_s = 0.0;      ///< by the own clock
  double offset_s = 0.0;  ///< rank 0's clock minus the own one, at that time
  double error_s = 0.0;   ///< bound of the offset's error; 0 for rank 0's own clock
};

/// Compares clocks by requesting rank 0's time repeatedly:
///
///     own clock   t0 ---------------- t2        offset = t1 - (t0 + t2)/2
///                    \              /           |error| <= (t2 - t0)/2
///     rank 0           ---- t1 ----
///
/// Rank 0 read t1 at some time between the request and the reply. Half the round trip bounds the error, even
/// if both ways differ. The exchange with the smallest round trip counts. Source: Cristian, "Probabilistic
/// clock synchronization", Distributed Computing 3, 1989; RFC 5905, section 8. \param time_of_rank_0 \returns
/// rank 0's time \pre exchanges >= 1
ClockOffset best_offset(const ClockReading& own, const std::function<double()>& time_of_rank_0,
                        int exchanges);

/// Compares the clocks of all ranks with rank 0's, by 64 exchanges per other clock. Ranks that share a clock
/// share its comparison. All ranks call it; with one clock nothing is sent.
ClockOffset compare_with_rank_0(RankSession& session, const ClockReading& own = wall_clock_s);

/// Rank 0's time as a function of the own one, from comparisons before and after a measurement:
///
///     rank_0(t) = t + offset_1 + drift (t - t_1)        drift = (offset_2 - offset_1)/(t_2 - t_1)
///
/// Holds: between both comparisons the error is at most the larger of theirs. A change of the drift meanwhile
/// (0.1 ppm in minutes for a quartz) is not modelled.
struct ClockLine {
  ClockLine(const ClockOffset& before, const ClockOffset& after);
  [[nodiscard]] double on_rank_0(double own_s) const;

  ClockOffset before;
  double drift = 0.0;  ///< seconds that rank 0's clock gains on the own one per second
  double error_s = 0.0;
};

}  // namespace stepcast
