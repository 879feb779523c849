#include "sim/evidence/quantities.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "core/error.hpp"
#include "core/ranges.hpp"

namespace stepcast {
namespace {

using Values = std::vector<double>;

/// `value` if it applies.
Values only_if(bool applies, double value) { return applies ? Values{value} : Values{}; }

Values total_time(const Result& result, const RowScope& scope) {
  return only_if(scope.steps > 0.0, result.median_step_time_s() * scope.steps);
}

Values step_time(const Result& result, const RowScope&) { return {result.median_step_time_s()}; }

Values speedup(const Result& result, const RowScope& scope) {
  return only_if(scope.steps > 0.0 && scope.alone_total > 0.0,
                 scope.alone_total / (result.median_step_time_s() * scope.steps));
}

/// A part of rank 0's step in all steps.
Values part_of_all_steps(const Result& result, const RowScope& scope, double Breakdown::*part) {
  if (scope.steps <= 0.0 || result.breakdown.empty()) return {};
  return {result.breakdown.front().*part * scope.steps};
}

Values peaks(const Result& result, const RowScope&) {
  return transformed(result.memory, [](const auto& rank) { return rank.peak_bytes / kPublishedMegabyte; });
}

/// The value, if the forecast has memory.
template <double (Result::*value)() const>
Values of_memory(const Result& result, const RowScope&) {
  return only_if(!result.memory.empty(), (result.*value)());
}

/// Of the ranks; 0 if it is not known.
double most_of(const Result& result, double MemoryUse::*bytes) {
  double most = 0.0;
  for (const MemoryUse& rank : result.memory) most = std::max(most, rank.*bytes);
  return most;
}

template <double MemoryUse::*bytes>
Values largest(const Result& result, const RowScope&) {
  return only_if(most_of(result, bytes) > 0.0, most_of(result, bytes));
}

}  // namespace

const std::vector<RowQuantity>& row_quantities() {
  static const std::vector<RowQuantity> kAll{
      {"throughput_samples_per_s", true, false,
       [](const Result& result, const RowScope&) {
         return only_if(result.configuration.data_parallel > 0, result.throughput_samples_per_s());
       }},
      {"total_time_s", true, true, total_time},
      {"epoch_time_s", true, true, total_time},
      {"mean_iteration_s", true, false, step_time},
      {"time_s", true, false, step_time},
      {"step_time_s", true, false, step_time},
      {"compute_time_s", false, true,
       [](const Result& result, const RowScope& scope) {
         return part_of_all_steps(result, scope, &Breakdown::compute_s);
       }},
      {"communication_time_s", false, true,
       [](const Result& result, const RowScope& scope) {  // no model has the cost of calls without a partner
         return scope.world_size < 2 ? Values{}
                                     : part_of_all_steps(result, scope, &Breakdown::exposed_communication_s);
       }},
      {"speedup", false, true, speedup},
      {"efficiency", false, true,
       [](const Result& result, const RowScope& scope) {
         Values values = speedup(result, scope);
         for (double& value : values) value /= scope.world_size;
         return values;
       }},
      {"peak_memory_mb_per_rank", false, false, peaks},
      {"mean_peak_memory_mb", false, false,
       [](const Result& result, const RowScope& scope) {
         return result.memory.empty() ? Values{} : Values{mean_of(peaks(result, scope))};
       }},
      {"stage_time_cv", false, false, of_memory<&Result::stage_time_cv>},
      {"memory_cv", false, false, of_memory<&Result::memory_cv>},
      {"bubble_fraction", false, false, of_memory<&Result::bubble_fraction>},
      {kPeakMemory, true, false,
       [](const Result& result, const RowScope&) {
         return only_if(!result.memory.empty(), highest_peak_bytes(result));
       }},
      {kReservedMemory, true, false, largest<&MemoryUse::reserved_bytes>},
      {kProcessMemory, true, false, largest<&MemoryUse::process_bytes>},
      {kLastRankMemory, true, false, [](const Result& result, const RowScope&) {
         return result.memory.empty() ? Values{} : Values{result.memory.back().peak_bytes};
       }}};
  return kAll;
}

const RowQuantity& quantity_named(const std::string& name) {
  return named(row_quantities(), &RowQuantity::name, "quantity", name);
}

RowValues row_values(const Result& result, const RowScope& scope) {
  RowValues values;
  for (const RowQuantity& quantity : row_quantities())
    if (std::vector<double> found = quantity.value(result, scope); !found.empty())
      values[quantity.name] = std::move(found);
  return values;
}

nlohmann::json json_of(const RowValues& values) {
  nlohmann::json json = nlohmann::json::object();
  for (const auto& [quantity, numbers] : values)
    json[quantity] = numbers.size() == 1 ? nlohmann::json(numbers.front()) : nlohmann::json(numbers);
  return json;
}

double highest_peak_bytes(const Result& result) { return most_of(result, &MemoryUse::peak_bytes); }

std::optional<double> mean_part(const Result& result, double Breakdown::*part) {
  if (result.breakdown.empty()) return std::nullopt;
  return sum_of(result.breakdown, part) / static_cast<double>(result.breakdown.size());
}

double mean_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

}  // namespace stepcast
