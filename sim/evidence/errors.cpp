#include "sim/evidence/errors.hpp"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/ranges.hpp"
#include "core/statistics.hpp"
#include "core/table.hpp"
#include "sim/evidence/quantities.hpp"

namespace stepcast {
namespace {

ErrorStatistics statistics_of(const std::vector<double>& errors) {
  return {mean(errors), median(errors), quantile(errors, 0.9), quantile(errors, 1.0)};
}

}  // namespace

double Errors::geometric_mean() const { return std::expm1(log.mean); }

Errors summary_of(const std::vector<ForecastError>& rows) {
  if (rows.empty()) return {};
  const auto with_sign = transformed(rows, &ForecastError::relative);
  const auto relative = transformed(with_sign, [](double error) { return std::abs(error); });
  const auto logarithmic = transformed(with_sign, [](double error) { return std::abs(std::log1p(error)); });
  const auto worst = std::ranges::max_element(relative) - relative.begin();
  return {rows.size(), mean(with_sign), statistics_of(relative), statistics_of(logarithmic), rows[worst]};
}

std::vector<std::pair<std::string, Errors>> errors_by_group(const std::vector<ForecastError>& rows) {
  return transformed(grouped(rows, &ForecastError::group), [](const auto& group) {
    return std::pair(group.first,
                     summary_of(transformed(group.second, [](const auto* row) { return *row; })));
  });
}

std::string errors_table(const std::string& groups, const std::vector<ForecastError>& rows) {
  Table table({groups, "rows", "mean", "median", "90 %", "worst", "bias"});
  const auto add = [&](const std::string& group, const Errors& errors) {
    const ErrorStatistics& all = errors.relative;
    if (errors.count == 0)
      table.add({group, "0", "-", "-", "-", "-", "-"});
    else
      table.add({group, std::to_string(errors.count), percent_text(all.mean), percent_text(all.median),
                 percent_text(all.p90), percent_text(all.worst), signed_percent_text(errors.bias)});
  };
  for (const auto& [group, errors] : errors_by_group(rows)) add(group, errors);
  add("all", summary_of(rows));
  return table.text();
}

std::string error_text(const std::optional<double>& error) {
  return error ? signed_percent_text(*error) : "-";
}

nlohmann::json errors_json(const Errors& errors) {
  nlohmann::json json{{"count", errors.count}};
  if (errors.count == 0) return json;
  json.update({{"mean_absolute_relative_error", errors.relative.mean},
               {"median_absolute_relative_error", errors.relative.median},
               {"p90_absolute_relative_error", errors.relative.p90},
               {"worst_absolute_relative_error", errors.relative.worst},
               {"bias", errors.bias},
               {"mean_absolute_log_error", errors.log.mean},
               {"worst_case", errors.worst_row.name}});
  return json;
}

}  // namespace stepcast
