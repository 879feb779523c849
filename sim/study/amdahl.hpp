#pragma once

#include <optional>
#include <vector>

/// Amdahl's law next to a simulation.
namespace stepcast {

/// Time per sample over ranks n: a part that more ranks do not shorten, and a part that they share.
///
///     t(n) = serial + parallel/n        serial fraction f = serial / (serial + parallel)
///
/// The speed-up over one rank is 1 / (f + (1 - f)/n) and at most 1/f. Source: G. Amdahl, AFIPS 1967. The law
/// misleads if the serial part grows: latencies of a ring grow with n, ranks leave a host for slower links,
/// and communication is hidden behind compute until it is longer. A law that was fitted to few ranks is too
/// optimistic for many.
struct AmdahlFit {
  double serial_s = 0.0, parallel_s = 0.0;
  [[nodiscard]] double serial_fraction() const { return serial_s / (serial_s + parallel_s); }
  [[nodiscard]] double time_s(double ranks) const { return serial_s + parallel_s / ranks; }
};

struct RanksAndTime {
  double ranks = 0.0;
  double sample_time_s = 0.0;  ///< above 0
};

/// Least squares of the relative errors t(n)/measured - 1, with both parts at least 0. If a point has one
/// rank, the law passes through it and only the serial fraction is fitted; else both parts are. None with
/// fewer than two numbers of ranks.
std::optional<AmdahlFit> fit_amdahl(const std::vector<RanksAndTime>& points);

}  // namespace stepcast
