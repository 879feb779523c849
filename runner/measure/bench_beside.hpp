#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "records/bench.hpp"
#include "runner/backend/session.hpp"
#include "runner/measure/bench_collectives.hpp"

/// How much collectives and computing on the same devices slow each other.
namespace stepcast {

/// What a device computes: `issue` puts it once on the default stream.
struct Computing {
  std::string name;
  std::function<void()> issue;
};

/// When something ran, in seconds of any clock.
struct Interval {
  double start_s = 0.0;
  double end_s = 0.0;
  [[nodiscard]] double length() const { return end_s - start_s; }
};

/// The slowdown of BesideRow, of the one that ran in `own` and takes `alone_s` alone; nothing where both ran together for less
/// than half of the shorter one, or where it was slow beside nothing, which is another's doing.
std::optional<double> slowdown_beside(double alone_s, const Interval& own, const Interval& other);

/// All ranks call it with equal settings, of which `device` is set, and receive equal rows. In each round, after calls and
/// computations alone, as many of each as take about 20 ms (at most 200) are issued while the device is held back, the calls
/// first, so that neither waits for the other; times are the device's, calls count from the end of the first, where all ranks
/// have met. A round in which a rank has no slowdown is dropped. \throws RunError where no round is left; UsageError as
/// check_collectives(), and for `send_recv`, which waits on its host
std::vector<BesideRow> bench_beside(RankSession& session, const BenchSettings& settings,
                                    const Computing& computing,
                                    const std::function<void(const std::string& now)>& on_sample);

}  // namespace stepcast
