#include "sim/commands/measured_output.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <regex>
#include <set>

#include "core/ranges.hpp"
#include "core/table.hpp"
#include "sim/evidence/trivial.hpp"

namespace stepcast {
namespace {

constexpr std::size_t kWorstRows = 10;

std::string plan_of(const Row& row) {
  std::string text;
  for (const auto& [name, value] : row.values.values())
    if (value.find('{') == std::string::npos)
      text += fmt::format("{}{}={}", text.empty() ? "" : " ", name, value);
  return text;
}

/// `28.58, -16.7 %`
std::string blind_text(const Row& row, const std::string& quantity) {
  if (!row.blind.contains(quantity)) return "";
  const nlohmann::json& blind = row.blind[quantity];
  const auto values = blind.is_array() ? blind.get<std::vector<double>>() : std::vector{blind.get<double>()};
  const auto error = relative_error(row, quantity, {values, values, values});
  return values_text(quantity, values) + (error ? ", " + signed_percent_text(*error) : "");
}

/// Cells of a table's row: one quantity of a forecast. Those of the leading quantity also describe the row.
std::vector<std::string> cells_of(const SetResult& result, std::size_t i, const std::string& quantity,
                                  bool detailed) {
  const Row& row = result.set.rows[i];
  const RowForecast& forecast = result.forecast.rows[i];
  const PredictedValue& value = forecast.values.at(quantity);
  const bool leads = quantity == row.leading();
  const char* mark = forecast.fitted ? " [fitted]" : row.role == RowRole::kRepeat ? " [repeated]" : "";
  const auto measured = row.agreed(quantity), error = relative_error(row, quantity, value);
  const std::string central = values_text(quantity, value.central), range = range_text(quantity, value);
  std::vector<std::string> cells{leads ? joined(row.parts) : "",
                                 leads ? row.name + mark : "",
                                 result.set.table ? "" : quantity,
                                 !measured  ? ""
                                 : detailed ? values_text(quantity, row.measured.at(quantity))
                                            : values_text(quantity, {*measured}),
                                 central,
                                 range == central ? "" : range,
                                 error ? signed_percent_text(*error) : "",
                                 blind_text(row, quantity)};
  if (!leads) return cells;
  for (const RowBaseline& one : kRowBaselines) {
    const auto baseline = optional_at(forecast.baselines, one.name);
    cells.push_back(measured && baseline ? signed_percent_text(*baseline / *measured - 1.0) : "");
  }
  cells.push_back(result.set.table ? plan_of(row) : "");
  return cells;
}

/// Rows with a forecast of their leading quantity, as they are shown.
std::vector<std::size_t> rows_in_order(const SetResult& result, ShownRows shown) {
  std::vector<std::size_t> rows;
  for (const auto [i, row] : enumerated(result.set.rows))
    if (result.forecast.rows[i].values.contains(row.leading())) rows.push_back(i);
  if (shown != ShownRows::kWorst) return rows;
  std::ranges::sort(rows, std::greater<>(), [&](std::size_t i) {
    const Row& row = result.set.rows[i];
    const PredictedValue& value = result.forecast.rows[i].values.at(row.leading());
    return std::abs(relative_error(row, row.leading(), value).value_or(0.0));
  });
  rows.resize(std::min(rows.size(), kWorstRows));
  return rows;
}

std::string parameters_text(const SetResult& result) {
  Table table({"fitted", "value", "range", "of the folds", "range left", "source"});
  for (const FittedParameter& one : result.forecast.parameters)
    table.add({one.name, short_number(one.value) + one.unit,
               short_number(one.low) + " to " + short_number(one.high),
               result.set.folds > 0
                   ? short_number(one.least_of_folds) + " to " + short_number(one.most_of_folds)
                   : "",
               percent_text(one.left, 0) + (one.left > 0.5 ? ": not determined" : ""), one.source});
  table.drop_empty_columns();
  std::string text = table.text();
  for (std::size_t i = 0; i < result.forecast.correlation.size(); ++i)
    for (std::size_t j = 0; j < i; ++j)
      if (constexpr double kTogether = 0.9; std::abs(result.forecast.correlation[i][j]) > kTogether)
        text += fmt::format("{} and {} are determined together (correlation {})\n",
                            result.forecast.parameters[j].name, result.forecast.parameters[i].name,
                            short_number(result.forecast.correlation[i][j]));
  return text;
}

std::string statistics_text(const Errors& errors) {
  const auto& [mean, median, p90, worst] = errors.relative;
  return fmt::format("mean {}, median {}, 90 % within {}, worst {}; bias {}\n", percent_text(mean),
                     percent_text(median), percent_text(p90), percent_text(worst),
                     signed_percent_text(errors.bias));
}

std::string errors_text(const RowSet& set, const SetSummary& summary) {
  std::string text = fmt::format("{} of {} forecast", summary.errors.count, counted(summary.rows, "row"));
  if (summary.errors.count == 0) return text + "\n";
  text += fmt::format(": absolute error{}: ", has_steps(set) ? "" : " of the memory") +
          statistics_text(summary.errors);
  if (!has_steps(set)) return text;
  if (!set.free.empty() && summary.baseline("defaults").count > 0)
    text += "with nothing fitted: " + statistics_text(summary.baseline("defaults"));
  std::vector<std::string> baselines;
  for (const auto& [name, title] : kRowBaselines)
    if (const Errors errors = summary.baseline(name); errors.count > 0)
      baselines.push_back(fmt::format("{}, median {}, farther than the forecast in {} of {}", title,
                                      percent_text(errors.relative.median),
                                      value_or(summary.farther, name, 0U), counted(errors.count, "row")));
  if (!baselines.empty()) text += "baselines: " + joined(baselines, "; ") + "\n";
  if (summary.groups > 0)
    text += fmt::format(
        "ranking: in {} of {} groups the plan forecast as the fastest is within 3 % of the fastest "
        "measured\n",
        summary.ranked, summary.groups);
  if (summary.memory.count > 0)
    text += fmt::format("memory: median absolute error {} of {}\n",
                        percent_text(summary.memory.relative.median), counted(summary.memory.count, "row"));
  return text;
}

}  // namespace

std::string rows_text(const SetResult& result, ShownRows shown) {
  const bool detailed = shown == ShownRows::kDetailed;
  std::vector<std::string> header{"part", shown == ShownRows::kWorst ? "worst rows" : "row"};
  for (const char* column : {"quantity", "measured", "forecast", "range", "error", "blind forecast"})
    header.emplace_back(column);
  for (const RowBaseline& one : kRowBaselines) header.emplace_back(one.title);
  header.emplace_back("plan");
  Table table(header);
  const std::set<std::string> compared = compared_quantities(result.set);
  for (const std::size_t i : rows_in_order(result, shown)) {
    const std::string leading = result.set.rows[i].leading();
    table.add(cells_of(result, i, leading, detailed));
    if (!detailed) continue;
    for (const auto& [quantity, value] : result.forecast.rows[i].values)
      if (quantity != leading && compared.contains(quantity)) table.add(cells_of(result, i, quantity, true));
  }
  table.drop_empty_columns();
  return table.text();
}

std::string summary_text(const SetResult& result) {
  const SetSummary summary = summary_of(result.set, result.forecast);
  std::string text = errors_text(result.set, summary);
  for (const auto& [reason, count] : summary.left_out)
    text += fmt::format("left out: {}: {}\n", counted(count, "row"), reason);
  return text;
}

/// A line per part; those of one text of `parts:` together, the worst first.
std::string parts_text(const SetResult& result) {
  std::set<std::pair<std::size_t, std::string>> parts;
  for (const Row& row : result.set.rows)
    for (const auto [place, part] : enumerated(row.parts)) parts.emplace(place, part);
  std::multimap<std::pair<std::size_t, double>, std::string> lines;
  for (const auto& [place, part] : parts) {
    const SetSummary s = summary_of(result.set, result.forecast, part);
    if (s.errors.count == 0) continue;
    lines.emplace(
        std::pair(place, -s.errors.relative.median),
        fmt::format("{}: {}, median {}, worst {}, bias {}{}\n", part, counted(s.errors.count, "row"),
                    percent_text(s.errors.relative.median), percent_text(s.errors.relative.worst),
                    signed_percent_text(s.errors.bias),
                    s.memory.count > 0 ? ", memory " + percent_text(s.memory.relative.median) : ""));
  }
  std::string text;
  for (const auto& [order, line] : lines) text += line;
  return text;
}

std::string set_text(const SetResult& result, ShownRows shown) {
  const auto& [set, forecast] = result;
  std::string text = fmt::format("{}\n{} ({})\n", set.id(), set.title, set.source);
  if (shown != ShownRows::kNone) text += "\n" + rows_text(result, shown) + "\n";
  text += summary_text(result);
  text += parts_text(result);
  if (!forecast.parameters.empty()) text += parameters_text(result);
  for (const std::string& one : assumptions(set, forecast)) text += "assumed: " + one + "\n";
  for (const std::string& one : forecast.unidentified)  // one line per value of what stays open
    text += std::regex_replace(one, std::regex("; with "), "\n    with ") + "\n";
  if (!set.limits.empty()) text += "limits: " + set.limits + "\n";
  return text + "\n";
}

}  // namespace stepcast
