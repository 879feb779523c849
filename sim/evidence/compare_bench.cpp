#include "sim/evidence/compare_bench.hpp"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/error.hpp"

namespace stepcast {
namespace {

double log_ratio(const BenchError& error) { return std::abs(std::log(error.predicted_s / error.measured_s)); }

}  // namespace

std::vector<BenchError> bench_errors(const Bench& measured, const Bench& predicted) {
  if (measured.world_size != predicted.world_size)
    throw InputError("measured with world size " + std::to_string(measured.world_size) +
                     ", predicted for world size " + std::to_string(predicted.world_size));
  std::vector<BenchError> errors;
  for (const BenchRow& row : measured.rows) {
    const auto found = std::find_if(predicted.rows.begin(), predicted.rows.end(), [&](const BenchRow& other) {
      return other.collective == row.collective && other.message_bytes == row.message_bytes;
    });
    if (found == predicted.rows.end() || row.time_s.empty() || found->time_s.empty()) continue;
    const BenchError error{row.collective, row.message_bytes, row.median_time_s(), found->median_time_s()};
    if (error.measured_s > 0.0 && error.predicted_s > 0.0) errors.push_back(error);
  }
  if (errors.empty()) throw InputError("the two bench files share no collective at the same size");
  return errors;
}

double geometric_mean_error(const std::vector<BenchError>& errors) {
  double sum = 0.0;
  for (const BenchError& error : errors) sum += log_ratio(error);
  return std::exp(sum / static_cast<double>(errors.size())) - 1.0;
}

const BenchError& worst(const std::vector<BenchError>& errors) {
  return *std::max_element(errors.begin(), errors.end(), [](const BenchError& a, const BenchError& b) {
    return log_ratio(a) < log_ratio(b);
  });
}

std::vector<BenchError> of_collective(const std::vector<BenchError>& errors, const std::string& collective) {
  std::vector<BenchError> rows;
  std::copy_if(errors.begin(), errors.end(), std::back_inserter(rows),
               [&](const BenchError& error) { return error.collective == collective; });
  return rows;
}

std::vector<std::string> collectives_of(const std::vector<BenchError>& errors) {
  std::vector<std::string> names;
  for (const BenchError& error : errors)
    if (std::find(names.begin(), names.end(), error.collective) == names.end())
      names.push_back(error.collective);
  return names;
}

nlohmann::json bench_comparison_json(const std::vector<BenchError>& errors) {
  nlohmann::json json = {{"geometric_mean_error", geometric_mean_error(errors)},
                         {"collectives", nlohmann::json::object()},
                         {"rows", nlohmann::json::array()}};
  for (const std::string& name : collectives_of(errors)) {
    const std::vector<BenchError> rows = of_collective(errors, name);
    const BenchError& bad = worst(rows);
    json["collectives"][name] = {{"geometric_mean_error", geometric_mean_error(rows)},
                                 {"worst_at_bytes", bad.message_bytes},
                                 {"worst_relative_error", bad.relative_error()}};
  }
  for (const BenchError& error : errors)
    json["rows"].push_back({{"collective", error.collective},
                            {"message_bytes", error.message_bytes},
                            {"measured_s", error.measured_s},
                            {"predicted_s", error.predicted_s},
                            {"relative_error", error.relative_error()}});
  return json;
}

}  // namespace stepcast
