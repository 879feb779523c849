#pragma once

#include <optional>
#include <string>
#include <vector>

#include "records/calibration.hpp"

namespace stepcast {

/// What all hosts sent at once, and what single pairs promise for so many.
struct AllAtOnce {
  int hosts = 0;
  BytesPerSecond together;  ///< hosts * 1 MiB / (time per message of `ring_all`)
  BytesPerSecond promised;  ///< hosts * 1 MiB / (time per message of `ring_pair` of the slowest class)
};

/// None where fewer than three hosts took part. Slow ones did not, unless fewer than two others were left.
std::optional<AllAtOnce> all_at_once(const Calibration& calibration);

/// Adds in words which hosts are slow, what was not measured because of them, and whether the network carries
/// less when all hosts send at once than single pairs promise (below 0.8 of it: oversubscription).
void report_slow_hosts(const Calibration& calibration, std::vector<std::string>& warnings);

}  // namespace stepcast
