#pragma once

#include <functional>
#include <vector>

#include "runner/backend/session.hpp"
#include "runner/control/host_identity.hpp"

/// Where the steady clocks of other hosts stand beside rank 0's, so that spans of different hosts can stand
/// in one timeline.
namespace stepcast {

/// Seconds of some steady clock.
using ClockReading = std::function<double()>;

/// One comparison of a rank's own clock with rank 0's.
struct ClockOffset {
  double at_s = 0.0;      ///< by the own clock
  double offset_s = 0.0;  ///< rank 0's clock minus the own one, at that instant
  double error_s = 0.0;   ///< the offset is off by at most this; 0 for a clock that is rank 0's
};

/// Compares clocks by asking rank 0 for its time over and over:
///
///     own clock   t0 ---------------- t2        offset = t1 - (t0 + t2)/2
///                    \              /           |error| <= (t2 - t0)/2
///     rank 0           ---- t1 ----
///
/// Rank 0 read t1 between the sending of the question and the arrival of the answer, wherever between: half
/// the round trip bounds the error, however unequal both ways were. Of all exchanges the one with the
/// smallest round trip counts. Source: Cristian, "Probabilistic clock synchronization", Distributed Computing
/// 3, 1989; RFC 5905, section 8. \param ask_rank_0 \returns rank 0's time \pre exchanges >= 1
ClockOffset best_offset(const ClockReading& own, const std::function<double()>& ask_rank_0, int exchanges);

/// Compares the clocks of all ranks with rank 0's, 64 exchanges per clock that is not rank 0's; ranks that
/// share a clock share its comparison. All ranks call it; with one clock nothing is sent. \param host_of_rank
/// by rank
ClockOffset compare_with_rank_0(RankSession& session, const std::vector<HostIdentity>& host_of_rank,
                                const ClockReading& own);

/// Rank 0's time as a function of the own one, from comparisons before and after what was measured:
///
///     rank_0(t) = t + offset_1 + drift (t - t_1)        drift = (offset_2 - offset_1)/(t_2 - t_1)
///
/// Holds: between both comparisons the error is at most the larger of theirs, plus what the drift itself
/// changed meanwhile (the rate of a quartz moves by some 0.1 ppm in minutes), which is left out.
class ClockLine {
 public:
  ClockLine(const ClockOffset& before, const ClockOffset& after);
  [[nodiscard]] double on_rank_0(double own_s) const;
  [[nodiscard]] double offset_s() const { return before_.offset_s; }  ///< at the first comparison
  /// Seconds that rank 0's clock gains on the own one per second.
  [[nodiscard]] double drift() const { return drift_; }
  [[nodiscard]] double error_s() const { return error_s_; }

 private:
  ClockOffset before_;
  double drift_ = 0.0;
  double error_s_ = 0.0;
};

}  // namespace stepcast
