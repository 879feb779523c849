#include "sim/evidence/set_summary.hpp"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/ranges.hpp"
#include "core/statistics.hpp"

namespace stepcast {
namespace {

constexpr double kAsGood = 0.03;  // by which the predicted best plan may be slower than the best

using Plan = std::pair<double, double>;  // forecast and measured step

/// Name of the shipped device that a row is forecast on with nothing fitted; "" of one with settings.
std::string shipped_device(const RowSet& set, const Row& row) {
  const std::vector<std::string> words = words_of(set, row, {});
  const auto option = std::ranges::find(words, "--device");
  const std::string device = option == words.end() ? "" : *std::next(option);
  return device.find(':') == std::string::npos ? device : "";
}

}  // namespace

bool has_steps(const RowSet& set) {
  return std::ranges::any_of(set.rows, [](const Row& row) { return row.measured.contains(kStepTime); });
}

std::string memory_quantity(const Row& row) {
  for (const char* quantity : {kPeakMemory, kLastRankMemory, kReservedMemory, kProcessMemory})
    if (row.measured.contains(quantity)) return quantity;
  return "";
}

Errors SetSummary::baseline(const std::string& name) const { return value_or(baselines, name, Errors{}); }

SetSummary summary_of(const RowSet& set, const SetForecast& forecast, const std::string& part) {
  SetSummary result;
  std::vector<ForecastError> steps, memory;
  std::map<std::string, std::vector<ForecastError>> baselines;
  std::map<std::string, std::vector<Plan>> groups;  // plans for the same training on the same GPUs
  for (const auto [i, row] : enumerated(set.rows)) {
    const RowForecast& one = forecast.rows[i];
    if (!part.empty() && row.part != part) continue;
    ++result.rows;
    if (!row.left_out.empty() || !one.refusal.empty()) {
      ++result.left_out[row.left_out.empty() ? "refused: " + one.refusal : row.left_out];
      continue;
    }
    if (one.fitted || one.values.empty()) continue;
    if (const std::string quantity = memory_quantity(row); one.central(quantity) > 0.0)
      memory.push_back({one.central(quantity) / *row.number(quantity) - 1.0, row.name, row.part});
    const auto measured = row.number(kStepTime);
    if (!measured) continue;
    steps.push_back({one.central(kStepTime) / *measured - 1.0, row.name, row.part});
    for (const auto& [name, value] : one.baselines)
      baselines[name].push_back({value / *measured - 1.0, row.name, row.part});
    if (!row.group.empty()) groups[row.group].emplace_back(one.central(kStepTime), *measured);
  }
  result.errors = summary_of(has_steps(set) ? steps : memory);
  result.memory = summary_of(memory);
  for (const auto& [name, errors] : baselines) result.baselines[name] = summary_of(errors);
  std::erase_if(groups, [](const auto& group) { return group.second.size() < 2; });
  result.groups = groups.size();
  for (const auto& [name, plans] : groups) {
    const double chosen = std::ranges::min_element(plans, {}, &Plan::first)->second;
    const double best = std::ranges::min_element(plans, {}, &Plan::second)->second;
    if (chosen <= (1.0 + kAsGood) * best) ++result.ranked;
  }
  return result;
}

SetAccuracy accuracy_of(const RowSet& set, const SetForecast& forecast) {
  const SetSummary summary = summary_of(set, forecast);
  SetAccuracy accuracy{.set = set.id(), .title = set.title, .rows = summary.rows};
  accuracy.add(summary.errors);
  for (const auto& [name, errors] : summary.baselines) {
    accuracy.percent[name] = 100.0 * errors.relative.median;
    if (name == "defaults") accuracy.percent["defaults_p90"] = 100.0 * errors.relative.p90;
  }
  constexpr std::size_t kLeastRows = 5;
  std::map<std::string, std::vector<double>> on;
  for (const auto [i, row] : enumerated(set.rows)) {
    const auto defaults = optional_at(forecast.rows[i].baselines, "defaults");
    const auto measured = row.number(kStepTime);
    if (!defaults || !measured || forecast.rows[i].fitted) continue;
    if (const std::string device = shipped_device(set, row); !device.empty())
      on[device].push_back(100.0 * std::abs(*defaults / *measured - 1.0));
  }
  for (const auto& [device, errors] : on)
    if (errors.size() >= kLeastRows) accuracy.percent["on " + device] = median(errors);
  if (has_steps(set) && summary.memory.count > 0)
    accuracy.percent["memory"] = 100.0 * summary.memory.relative.median;
  if (summary.groups > 0) accuracy.ranking = fmt::format("{} of {}", summary.ranked, summary.groups);
  return accuracy;
}

nlohmann::json json_of(const RowSet& set, const SetForecast& forecast) {
  nlohmann::json json{{"id", set.id()},
                      {"title", set.title},
                      {"source", set.source},
                      {"rows", nlohmann::json::array()},
                      {"parameters", forecast.parameters},
                      {"correlation", forecast.correlation},
                      {"folds", set.folds},
                      {"forecasts", forecast.forecasts}};
  for (const auto [i, row] : enumerated(set.rows)) {
    const RowForecast& of_row = forecast.rows[i];
    nlohmann::json& one = json["rows"].emplace_back(nlohmann::json{{"name", row.name}});
    for (const auto& [name, value] : row.values.values()) one["values"][name] = value;
    if (!row.left_out.empty() || !of_row.refusal.empty()) {
      one["left_out"] = row.left_out.empty() ? of_row.refusal : row.left_out;
      continue;
    }
    one["fitted"] = of_row.fitted;
    if (const auto measured = row.number(kStepTime))
      one.update({{"measured_s", *measured},
                  {"forecast_s", of_row.central(kStepTime)},
                  {"error", of_row.central(kStepTime) / *measured - 1.0}});
    for (const auto& [name, value] : of_row.baselines) one[name + "_s"] = value;
    if (of_row.fold >= 0) one["fold"] = of_row.fold;
    if (!row.group.empty()) one["group"] = row.group;
    if (!row.part.empty()) one["part"] = row.part;
    if (const std::string quantity = memory_quantity(row); !quantity.empty())
      one.update({{"measured_bytes", *row.number(quantity)}, {"forecast_bytes", of_row.central(quantity)}});
  }
  return json;
}

}  // namespace stepcast
