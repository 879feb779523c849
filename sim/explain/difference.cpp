#include "sim/explain/difference.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>

#include "core/error.hpp"
#include "core/ranges.hpp"

namespace stepcast {
namespace {

void sort(std::vector<StepDifference>& rows) {
  std::ranges::stable_sort(rows, std::greater(), [](const auto& row) { return std::abs(row.seconds()); });
}

/// Name of the row that a span adds to; "": none.
using Key = std::function<std::string(const Span&)>;

std::string kind_key(const Span& span) {
  return span.kind == SpanKind::kWait ? "" : span.name.substr(0, span.name.find('/'));
}

std::string layer_key(const Span& span) {
  const std::string name = split_micro_batch(span.name).first;
  const std::size_t slash = name.find('/');
  return span.kind != SpanKind::kCompute || slash == std::string::npos ? "" : name.substr(slash + 1);
}

std::string collective_key(const Span& span) {
  return span.kind == SpanKind::kCommunication ? split_micro_batch(span.name).first : "";
}

std::vector<StepDifference> by(const Result& measured, const Result& forecast, const std::set<int>& ranks,
                               const Key& key) {
  std::map<std::string, StepDifference> rows;
  const auto add = [&](const Result& result, double StepDifference::*side) {
    for (const Span& span : result.spans)
      if (const std::string name = key(span); ranks.contains(span.rank) && !name.empty())
        rows.try_emplace(name, StepDifference{name}).first->second.*side +=
            (span.end_s - span.start_s) / static_cast<double>(ranks.size());
  };
  add(measured, &StepDifference::measured_s);
  add(forecast, &StepDifference::forecast_s);
  std::vector<StepDifference> result = transformed(rows, [](const auto& row) { return row.second; });
  sort(result);
  return result;
}

std::set<int> ranks_of(const Result& result) {
  std::set<int> ranks;
  for (const MemoryUse& each : result.memory) ranks.insert(each.rank);
  for (const Span& span : result.spans) ranks.insert(span.rank);
  return ranks;
}

/// Mean of a part over `ranks`. Entries of the breakdown are of the ranks of those of the memory.
double mean(const Result& result, const std::set<int>& ranks, double Breakdown::*part) {
  double sum = 0.0;
  for (std::size_t i = 0; i < std::min(result.breakdown.size(), result.memory.size()); ++i)
    if (ranks.contains(result.memory[i].rank)) sum += result.breakdown[i].*part;
  return sum / static_cast<double>(ranks.size());
}

/// Other options, threads and kinds of computing are explained.
void check_same_case(const Configuration& measured, Configuration forecast) {
  forecast.options = measured.options;
  forecast.threads = measured.threads;
  forecast.compute = measured.compute;
  forecast.engine = measured.engine;
  std::string other = difference(forecast, measured);
  const auto name = [](const std::string& device) { return device.substr(0, device.find(':')); };
  const std::string here = name(forecast.device), there = name(measured.device);
  if (other.empty() && !here.empty() && !there.empty() && here != there)
    other = fmt::format("device '{}', not '{}'", here, there);
  if (!other.empty()) throw InputError("the forecast is of another case than the run: {}", other);
}

}  // namespace

StepDifferences step_differences(const Result& measured, const Result& forecast) {
  check_same_case(measured.configuration, forecast.configuration);
  std::set<int> ranks;
  std::ranges::set_intersection(ranks_of(measured), ranks_of(forecast), std::inserter(ranks, ranks.end()));
  if (ranks.empty()) throw InputError("the files have no rank with operations in common");
  StepDifferences result{forecast.median_step_time_s(), measured.median_step_time_s(), {}, {}, {}, {}, {}};
  const Configuration &run = measured.configuration, &asked = forecast.configuration;
  if (run.options != asked.options || run.compute != asked.compute)
    result.note = fmt::format("Measured was '{}' with {} compute, forecast is '{}' with {} compute.",
                              run.label, run.compute, asked.label, asked.compute);
  StepDifference rest{"other steps", result.forecast_s, result.measured_s};
  for (const auto& [name, part] : breakdown_parts()) {
    if (part == &Breakdown::overlapped_communication_s) continue;
    result.parts.push_back({name, mean(forecast, ranks, part), mean(measured, ranks, part)});
    rest.forecast_s -= result.parts.back().forecast_s;
    rest.measured_s -= result.parts.back().measured_s;
  }
  result.parts.push_back(rest);
  sort(result.parts);
  result.kinds = by(measured, forecast, ranks, kind_key);
  result.layers = by(measured, forecast, ranks, layer_key);
  result.collectives = by(measured, forecast, ranks, collective_key);
  return result;
}

}  // namespace stepcast
