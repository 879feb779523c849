#pragma once

#include <optional>
#include <string>
#include <vector>

#include "records/calibration.hpp"

namespace stepcast {

/// Rate of all hosts at once, and the sum of the rates of as many single pairs.
struct AllAtOnce {
  int hosts = 0;
  BytesPerSecond together;  ///< hosts * 1 MiB / (time per message of `ring_all`)
  BytesPerSecond promised;  ///< hosts * 1 MiB / (time per message of `ring_pair` of the slowest class)
};

/// Empty for fewer than three hosts. Slow hosts are left out if at least two others remain.
std::optional<AllAtOnce> all_at_once(const Calibration& calibration);

/// Adds warnings: slow hosts, costs that were not measured because of them, and oversubscription (all hosts
/// at once send less than 0.8 of the rate of single pairs).
void report_slow_hosts(const Calibration& calibration, std::vector<std::string>& warnings);

}  // namespace stepcast
