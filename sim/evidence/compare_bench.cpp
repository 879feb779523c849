#include "sim/evidence/compare_bench.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "core/ranges.hpp"
#include "core/units.hpp"

namespace stepcast {

std::vector<BenchPair> bench_pairs(const Bench& measured, const Bench& predicted) {
  if (measured.world_size != predicted.world_size)
    throw InputError("measured with world size {}, predicted for world size {}", measured.world_size,
                     predicted.world_size);
  if (measured.backend != predicted.backend)
    throw InputError("measured with backend '{}', predicted for backend '{}'", measured.backend,
                     predicted.backend);
  std::vector<BenchPair> pairs;
  for (const BenchRow& row : measured.rows) {
    const auto found = std::ranges::find_if(predicted.rows, [&](const BenchRow& other) {
      return other.collective == row.collective && other.message_bytes == row.message_bytes;
    });
    if (found == predicted.rows.end() || row.time_s.empty() || found->time_s.empty()) continue;
    if (row.wrong != 0)
      throw InputError("measured {} of {}: {} elements differed from the expected result", row.collective,
                       to_text(Bytes(row.message_bytes)), row.wrong);
    if (measured.backend != "nccl" && row.algorithm != found->algorithm)  // predictions contain NCCL's choice
      throw InputError("{}: measured with algorithm '{}', predicted for '{}'; '' is the library's own choice",
                       row.collective, row.algorithm, found->algorithm);
    const BenchPair pair{row.collective, row.message_bytes, row.median_time_s(), found->median_time_s()};
    if (pair.measured_s > 0.0 && pair.predicted_s > 0.0) pairs.push_back(pair);
  }
  if (pairs.empty())
    throw InputError("the two bench files share no collective at the same size with times above 0");
  return pairs;
}

std::vector<ForecastError> errors_of(const std::vector<BenchPair>& pairs) {
  return transformed(pairs, [](const BenchPair& pair) -> ForecastError {
    return {pair.predicted_s / pair.measured_s - 1.0, to_text(Bytes(pair.message_bytes)), pair.collective};
  });
}

nlohmann::json bench_comparison_json(const std::vector<BenchPair>& pairs) {
  nlohmann::json json = {{"geometric_mean_error", summary_of(errors_of(pairs)).geometric_mean()},
                         {"collectives", nlohmann::json::object()},
                         {"rows", nlohmann::json::array()}};
  for (const auto& [name, errors] : errors_by_group(errors_of(pairs)))
    json["collectives"][name] = {{"geometric_mean_error", errors.geometric_mean()},
                                 {"worst_at", errors.worst_row.name},
                                 {"worst_relative_error", errors.worst_row.relative}};
  for (const BenchPair& pair : pairs)
    json["rows"].push_back({{"collective", pair.collective},
                            {"message_bytes", pair.message_bytes},
                            {"measured_s", pair.measured_s},
                            {"predicted_s", pair.predicted_s},
                            {"relative_error", pair.predicted_s / pair.measured_s - 1.0}});
  return json;
}

}  // namespace stepcast
