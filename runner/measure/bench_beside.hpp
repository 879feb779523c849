#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "records/bench.hpp"
#include "runner/backend/session.hpp"
#include "runner/measure/bench_collectives.hpp"

/// Slowdown of collectives and computations that run concurrently on the same devices.
namespace stepcast {

/// A computation of a device: `issue` enqueues it once on the default stream.
struct Computing {
  std::string name;
  std::function<void()> issue;
};

/// Begin and end, in seconds of any clock.
struct Interval {
  double start_s = 0.0, end_s = 0.0;
  [[nodiscard]] double length() const { return end_s - start_s; }
};

/// Slowdown (see BesideRow) of what ran in `own` and takes `alone_s` alone. Nothing if both ran concurrently
/// for less than half of the shorter one, or if it was slow without the other, which has another cause.
std::optional<double> slowdown_beside(double alone_s, const Interval& own, const Interval& other);

/// All ranks call it with equal settings, whose `device` is set, and receive equal rows. In each round, after
/// calls and computations alone, about 20 ms of each (at most 200) are issued while the device is blocked,
/// calls first, so that neither waits for the other. Times are the device's; calls count from the end of the
/// first, at which all ranks have met. Drops rounds in which a rank has no slowdown. \throws RunError if no
/// round is left; UsageError for `send_recv`, which is timed on the host \pre known collectives
std::vector<BesideRow> bench_beside(RankSession& session, const BenchSettings& settings,
                                    const Computing& computing, const OnSample& on_sample);

}  // namespace stepcast
