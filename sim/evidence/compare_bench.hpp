#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "records/bench.hpp"

/// How well collectives were predicted over message sizes.
namespace stepcast {

/// One collective at one size in both files.
struct BenchError {
  std::string collective;
  double message_bytes = 0.0;
  double measured_s = 0.0;
  double predicted_s = 0.0;
  [[nodiscard]] double relative_error() const { return predicted_s / measured_s - 1.0; }
};

/// Rows that both files hold, in the order of the measured file; rows of 0 s have no relative error and are
/// left out. \throws InputError when no row is shared or the world sizes differ.
std::vector<BenchError> bench_errors(const Bench& measured, const Bench& predicted);

/// exp(mean |ln(predicted / measured)|) - 1: a factor of two too slow and one too fast count the same.
/// \pre errors not empty
double geometric_mean_error(const std::vector<BenchError>& errors);

/// The row with the largest |ln(predicted / measured)|. \pre errors not empty
const BenchError& worst(const std::vector<BenchError>& errors);

/// The rows of one collective.
std::vector<BenchError> of_collective(const std::vector<BenchError>& errors, const std::string& collective);
/// The collectives in order of appearance.
std::vector<std::string> collectives_of(const std::vector<BenchError>& errors);

nlohmann::json bench_comparison_json(const std::vector<BenchError>& errors);

}  // namespace stepcast
