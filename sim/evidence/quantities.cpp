#include "sim/evidence/quantities.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "core/ranges.hpp"
#include "core/statistics.hpp"
#include "core/table.hpp"
#include "core/units.hpp"

namespace stepcast {
namespace {

/// Adds quantities of all steps.
void add_totals(const Result& result, const RowScope& scope, RowValues& values) {
  const double total_s = result.median_step_time_s() * scope.steps;
  values["total_time_s"] = values["epoch_time_s"] = {total_s};
  if (scope.alone_total > 0.0) {
    values["speedup"] = {scope.alone_total / total_s};
    values["efficiency"] = {scope.alone_total / total_s / result.configuration.world_size};
  }
  if (result.breakdown.empty()) return;
  const Breakdown& part = result.breakdown.front();
  values["compute_time_s"] = {part.compute_s * scope.steps};
  if (result.configuration.world_size > 1)  // no model has the cost of calls without a partner
    values["communication_time_s"] = {part.exposed_communication_s * scope.steps};
}

void add_memory(const Result& result, RowValues& values) {
  const auto peaks =
      transformed(result.memory, [](const auto& rank) { return rank.peak_bytes / kPublishedMegabyte; });
  values["peak_memory_mb_per_rank"] = peaks;
  values["mean_peak_memory_mb"] = {mean(peaks)};
  values["stage_time_cv"] = {result.stage_time_cv()};
  values["memory_cv"] = {result.memory_cv()};
  values["bubble_fraction"] = {result.bubble_fraction()};
  values[kPeakMemory] = {highest_peak_bytes(result)};
  values[kLastRankMemory] = {result.memory.back().peak_bytes};
  for (const auto& [name, bytes] : {std::pair(kReservedMemory, &MemoryUse::reserved_bytes),
                                    std::pair(kProcessMemory, &MemoryUse::process_bytes)})
    if (const double most = largest_of(result.memory, bytes); most > 0.0) values[name] = {most};
}

std::string value_text(const std::string& quantity, double value) {
  if (quantity == kStepTime) return to_text(Seconds(value));
  return quantity.ends_with("_bytes") ? to_text(Bytes(value)) : short_number(value);
}

}  // namespace

const RowQuantity& quantity_named(const std::string& name) {
  return named(kRowQuantities, &RowQuantity::name, "quantity", name);
}

RowValues row_values(const Result& result, const RowScope& scope) {
  RowValues values;
  for (const char* name : {kStepTime, "mean_iteration_s", "time_s"})
    values[name] = {result.median_step_time_s()};
  if (result.configuration.data_parallel > 0)
    values["throughput_samples_per_s"] = {result.throughput_samples_per_s()};
  if (scope.steps > 0.0) add_totals(result, scope, values);
  if (!result.memory.empty()) add_memory(result, values);
  return values;
}

nlohmann::json json_of(const RowValues& values) {
  nlohmann::json json = nlohmann::json::object();
  for (const auto& [quantity, numbers] : values)
    json[quantity] = numbers.size() == 1 ? nlohmann::json(numbers.front()) : nlohmann::json(numbers);
  return json;
}

std::string values_text(const std::string& quantity, const std::vector<double>& values) {
  return joined(transformed(values, [&](double value) { return value_text(quantity, value); }), " | ");
}

std::string range_text(const std::string& quantity, const PredictedValue& value) {
  std::vector<std::string> ranges;
  for (std::size_t i = 0; i < value.low.size(); ++i) {
    const std::string low = value_text(quantity, value.low[i]), high = value_text(quantity, value.high[i]);
    ranges.push_back(low == high ? low : fmt::format("{} to {}", low, high));
  }
  return joined(ranges, " | ");
}

double highest_peak_bytes(const Result& result) { return largest_of(result.memory, &MemoryUse::peak_bytes); }

std::optional<double> mean_part(const Result& result, double Breakdown::*part) {
  if (result.breakdown.empty()) return std::nullopt;
  return sum_of(result.breakdown, part) / static_cast<double>(result.breakdown.size());
}

}  // namespace stepcast
