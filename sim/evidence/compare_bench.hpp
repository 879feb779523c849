#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "records/bench.hpp"
#include "sim/evidence/errors.hpp"

/// Errors of predicted collectives over message sizes.
namespace stepcast {

/// One collective at one size in a measured and a predicted bench file.
struct BenchPair {
  std::string collective;
  double message_bytes = 0.0;
  double measured_s = 0.0, predicted_s = 0.0;
};

/// Rows that both files contain, in the order of the measured file. Rows of 0 s have no relative error and
/// are left out. \throws InputError if no row is shared or the world sizes differ
std::vector<BenchPair> bench_pairs(const Bench& measured, const Bench& predicted);

/// Errors with the size as name and the collective as group.
std::vector<ForecastError> errors_of(const std::vector<BenchPair>& pairs);

nlohmann::json bench_comparison_json(const std::vector<BenchPair>& pairs);

}  // namespace stepcast
