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

/// Quantity of a row's measured memory; empty if there is none.
std::string memory_quantity(const Row& row) {
  for (const char* quantity : {kPeakMemory, kLastRankMemory, kReservedMemory, kProcessMemory})
    if (row.measured.contains(quantity)) return quantity;
  return "";
}

nlohmann::json row_json(const Row& row, const RowForecast& forecast, const std::set<std::string>& compared) {
  nlohmann::json json{{"name", row.name}, {"use", row_of(kRowRoles, row.role).name}};
  for (const auto& [name, value] : row.values.values()) json["values"][name] = value;
  if (!row.left_out.empty() || !forecast.refusal.empty()) {
    json["left_out"] = row.left_out.empty() ? forecast.refusal : row.left_out;
    return json;
  }
  RowValues central, low, high;
  for (const auto& [quantity, value] : forecast.values) {
    if (quantity != row.leading() && !compared.contains(quantity)) continue;
    central[quantity] = value.central;
    low[quantity] = value.low;
    high[quantity] = value.high;
    if (const auto error = relative_error(row, quantity, value)) json["errors"][quantity] = *error;
  }
  json.update({{"fitted", forecast.fitted},
               {"quantity", row.leading()},
               {"measured", json_of(row.measured)},
               {"forecast", json_of(central)},
               {"low", json_of(low)},
               {"high", json_of(high)},
               {"baselines", forecast.baselines}});
  if (!row.blind.empty()) json["blind_forecast"] = row.blind;
  if (row.uncertainty.sigma > 0.0) json["sigma"] = row.uncertainty.sigma;
  if (forecast.fold >= 0) json["fold"] = forecast.fold;
  for (const auto& [key, text] : {std::pair("group", &Row::group), std::pair("comment", &Row::comment)})
    if (!(row.*text).empty()) json[key] = row.*text;
  if (!row.parts.empty()) json["parts"] = row.parts;
  return json;
}

}  // namespace

bool has_steps(const RowSet& set) {
  return std::ranges::any_of(set.rows, [](const Row& row) {
    return !row.measured.empty() && row.leading() != memory_quantity(row);
  });
}

std::set<std::string> compared_quantities(const RowSet& set) {
  std::set<std::string> names;
  for (const RowQuantity& quantity : kRowQuantities)
    if (std::ranges::any_of(set.rows, [&](const Row& row) {
          return row.measured.contains(quantity.name) || row.blind.contains(quantity.name);
        }))
      names.insert(quantity.name);
  return names;
}

Errors SetSummary::baseline(const std::string& name) const { return value_or(baselines, name, Errors{}); }

SetSummary summary_of(const RowSet& set, const SetForecast& forecast, const std::string& part) {
  SetSummary result;
  std::vector<ForecastError> leading, memory;
  std::map<std::string, std::vector<ForecastError>> baselines;
  std::map<std::string, std::vector<Plan>> groups;  // plans for the same training on the same GPUs
  for (const auto [i, row] : enumerated(set.rows)) {
    const RowForecast& one = forecast.rows[i];
    if (!part.empty() && !std::ranges::count(row.parts, part)) continue;
    ++result.rows;
    if (!row.left_out.empty() || !one.refusal.empty()) {
      ++result.left_out[row.left_out.empty() ? "refused: " + one.refusal : row.left_out];
      continue;
    }
    const std::string quantity = row.leading();
    if (one.fitted || !one.values.contains(quantity)) continue;
    if (row.measured.empty() || row.role == RowRole::kRepeat) {
      ++result.left_out[row.measured.empty() ? "not measured" : "same forecast as a row to fit"];
      continue;
    }
    if (const std::string held = memory_quantity(row); one.central(held) > 0.0)
      memory.push_back({one.central(held) / *row.number(held) - 1.0, row.name});
    const double measured = *row.agreed(quantity), error = one.central(quantity) / measured - 1.0;
    leading.push_back({error, row.name});
    for (const auto& [name, value] : one.baselines) {
      const double other = value / measured - 1.0;
      baselines[name].push_back({other, row.name});
      if (std::abs(other) > std::abs(error)) ++result.farther[name];
    }
    if (!row.group.empty() && quantity == kStepTime)
      groups[row.group].emplace_back(one.central(kStepTime), measured);
  }
  result.errors = summary_of(leading);
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
                      {"limits", set.limits},
                      {"rows", nlohmann::json::array()},
                      {"parameters", forecast.parameters},
                      {"correlation", forecast.correlation},
                      {"chosen", forecast.chosen},
                      {"accepted", forecast.accepted},
                      {"objective", forecast.objective},
                      {"left_out_error", forecast.left_out_error},
                      {"assumed", assumptions(set, forecast)},
                      {"unidentified", forecast.unidentified},
                      {"folds", set.folds},
                      {"forecasts", forecast.forecasts}};
  const std::set<std::string> compared = compared_quantities(set);
  for (const auto [i, row] : enumerated(set.rows))
    json["rows"].push_back(row_json(row, forecast.rows[i], compared));
  return json;
}

}  // namespace stepcast
