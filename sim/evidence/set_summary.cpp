#include "sim/evidence/set_summary.hpp"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

namespace stepcast {
namespace {

constexpr double kAsGood = 0.03;  // by which the predicted best plan may be slower than the best

/// Plans for the same training on the same GPUs.
struct PlanGroup {
  double best = std::numeric_limits<double>::infinity(), first = 0.0,
         least = std::numeric_limits<double>::infinity();
  int rows = 0;

  void add(double measured, double forecast) {
    ++rows;
    best = std::min(best, measured);
    if (forecast >= least) return;
    least = forecast;
    first = measured;
  }
};

}  // namespace

bool has_steps(const RowSet& set) {
  return std::ranges::any_of(set.rows, [](const Row& row) { return row.measured.contains(kStepTime); });
}

std::string memory_quantity(const Row& row) {
  for (const char* quantity : {kPeakMemory, kLastRankMemory, kReservedMemory, kProcessMemory})
    if (row.measured.contains(quantity)) return quantity;
  return "";
}

SetSummary summary_of(const RowSet& set, const SetForecast& forecast, const std::string& part) {
  SetSummary result;
  std::vector<ForecastError> steps, nearest, constant, defaults, memory;
  std::map<std::string, PlanGroup> groups;
  for (std::size_t i = 0; i < set.rows.size(); ++i) {
    const Row& row = set.rows[i];
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
    for (const auto& [name, errors] : {std::pair{"nearest_neighbour", &nearest},
                                       {"constant_throughput", &constant},
                                       {"defaults", &defaults}})
      if (const auto found = one.baselines.find(name); found != one.baselines.end())
        errors->push_back({found->second / *measured - 1.0, row.name, row.part});
    if (!row.group.empty()) groups[row.group].add(*measured, one.central(kStepTime));
  }
  result.errors = summary_of(has_steps(set) ? steps : memory);
  result.nearest = summary_of(nearest);
  result.constant = summary_of(constant);
  result.defaults = summary_of(defaults);
  result.memory = summary_of(memory);
  std::erase_if(groups, [](const auto& group) { return group.second.rows < 2; });
  result.groups = groups.size();
  for (const auto& [name, group] : groups)
    if (group.first <= (1.0 + kAsGood) * group.best) ++result.ranked;
  return result;
}

SetAccuracy accuracy_of(const RowSet& set, const SetForecast& forecast) {
  const SetSummary summary = summary_of(set, forecast);
  SetAccuracy accuracy{.set = set.id, .title = set.title, .rows = summary.rows};
  accuracy.add(summary.errors);
  const auto add_median = [&](const char* key, const Errors& errors) {
    if (errors.count > 0) accuracy.percent[key] = 100.0 * errors.relative.median;
  };
  add_median("defaults", summary.defaults);
  if (summary.defaults.count > 0) accuracy.percent["defaults_p90"] = 100.0 * summary.defaults.relative.p90;
  add_median("nearest_neighbour", summary.nearest);
  add_median("constant_throughput", summary.constant);
  if (has_steps(set)) add_median("memory", summary.memory);
  if (summary.groups > 0) accuracy.ranking = fmt::format("{} of {}", summary.ranked, summary.groups);
  return accuracy;
}

nlohmann::json json_of(const FittedParameter& one) {
  return {
      {"name", one.name},    {"unit", one.unit}, {"value", one.value},          {"low", one.low},
      {"high", one.high},    {"left", one.left}, {"least_of_folds", one.least}, {"most_of_folds", one.most},
      {"source", one.source}};
}

nlohmann::json json_of(const RowSet& set, const SetForecast& forecast) {
  nlohmann::json json{{"id", set.id},
                      {"title", set.title},
                      {"source", set.source},
                      {"rows", nlohmann::json::array()},
                      {"parameters", nlohmann::json::array()},
                      {"correlation", forecast.correlation},
                      {"folds", set.folds},
                      {"forecasts", forecast.forecasts}};
  for (std::size_t i = 0; i < set.rows.size(); ++i) {
    const Row& row = set.rows[i];
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
  for (const FittedParameter& one : forecast.parameters) json["parameters"].push_back(json_of(one));
  return json;
}

}  // namespace stepcast
