#pragma once

#include <optional>
#include <vector>

/// Amdahl's law beside a simulation.
namespace stepcast {

/// Time per sample over ranks n as a part that more ranks do not shorten and one that they share:
///
///     t(n) = serial + parallel/n        serial fraction f = serial / (serial + parallel)
///
/// so that the speed-up over one rank is 1 / (f + (1 - f)/n) and at most 1/f. Source: G. Amdahl, AFIPS 1967.
/// It misleads where what does not shrink grows: latencies of a ring grow with n, links of a host are left for
/// slower ones at some n, and communication hides behind compute until it is longer. A law that was fitted to
/// few ranks promises too much of many.
struct AmdahlFit {
  double serial_s = 0.0, parallel_s = 0.0;
  [[nodiscard]] double serial_fraction() const { return serial_s / (serial_s + parallel_s); }
  [[nodiscard]] double time_s(double ranks) const { return serial_s + parallel_s / ranks; }
};

struct RanksAndTime {
  double ranks = 0.0;
  double sample_time_s = 0.0;  ///< above 0
};

/// Least squares of the relative errors t(n)/measured - 1, with both parts at least 0: of the serial fraction where
/// a time of one rank is among the points, through which the law then goes, and else of both parts. Nothing where
/// there are fewer than two numbers of ranks.
std::optional<AmdahlFit> fit_amdahl(const std::vector<RanksAndTime>& points);

}  // namespace stepcast
