#include "sim/commands/measured_output.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "core/table.hpp"

namespace stepcast {
namespace {

constexpr std::size_t kWorstRows = 10;

std::string plan_of(const MeasuredRow& row) {
  std::string text;
  for (const auto& [name, value] : row.values.values())
    if (value.find('{') == std::string::npos) text += (text.empty() ? "" : " ") + name + "=" + value;
  return text;
}

std::string rows_text(const SetResult& result, bool every) {
  std::vector<std::size_t> rows;
  const auto error = [&](std::size_t i) {
    return result.forecast.rows[i].step_s / result.set.rows[i].step_s - 1.0;
  };
  for (std::size_t i = 0; i < result.set.rows.size(); ++i)
    if (result.forecast.rows[i].step_s > 0.0 && result.set.rows[i].left_out.empty()) rows.push_back(i);
  if (!every) {
    std::ranges::sort(rows,
                      [&](std::size_t a, std::size_t b) { return std::abs(error(a)) > std::abs(error(b)); });
    rows.resize(std::min(rows.size(), kWorstRows));
  }
  Table table(
      {every ? "row" : "worst rows", "measured", "forecast", "error", "nearest row", "one rate", "plan"});
  for (const std::size_t i : rows) {
    const RowForecast& said = result.forecast.rows[i];
    const double measured = result.set.rows[i].step_s;
    const auto off = [&](const std::optional<double>& value) {
      return value ? signed_percent_text(*value / measured - 1.0) : "-";
    };
    table.add({result.set.rows[i].name + (said.fitted ? " [fitted]" : ""), to_text(Seconds(measured)),
               to_text(Seconds(said.step_s)), off(said.step_s), off(said.nearest_s), off(said.roofline_s),
               plan_of(result.set.rows[i])});
  }
  return table.text();
}

std::string parameters_text(const SetResult& result) {
  Table table({"fitted", "value", "range", "of the folds", "range left"});
  for (const RowParameter& one : result.forecast.parameters)
    table.add({one.name, short_number(one.value) + one.unit,
               short_number(one.low) + " to " + short_number(one.high),
               result.set.folds > 0 ? short_number(one.least) + " to " + short_number(one.most) : "-",
               percent_text(one.left, 0) + (one.left > 0.5 ? ": not determined" : "")});
  std::string text = table.text();
  for (std::size_t i = 0; i < result.forecast.correlation.size(); ++i)
    for (std::size_t j = 0; j < i; ++j)
      if (constexpr double kTogether = 0.9; std::abs(result.forecast.correlation[i][j]) > kTogether)
        text += result.forecast.parameters[j].name + " and " + result.forecast.parameters[i].name +
                " are determined together (correlation " + short_number(result.forecast.correlation[i][j]) +
                ")\n";
  return text;
}

/// Of an error that has something to be the error of.
std::string known_percent(const std::optional<double>& error) { return error ? percent_text(*error) : "-"; }

std::string summary_text(const SetSummary& summary) {
  std::string text =
      std::to_string(summary.forecasts) + " of " + std::to_string(summary.rows) + " rows forecast";
  if (summary.forecasts == 0) return text + "\n";
  text += ": absolute error mean " + percent_text(summary.mean) + ", median " + percent_text(summary.median) +
          ", 90 % within " + percent_text(summary.p90) + ", worst " + percent_text(summary.worst) +
          "; bias " + signed_percent_text(summary.bias) + "\ntrivial: nearest row scaled by work, median " +
          known_percent(summary.nearest) + "; one rate for all, median " + known_percent(summary.roofline) +
          "\n";
  if (summary.groups > 0)
    text += "choosing: in " + std::to_string(summary.chosen_well) + " of " + std::to_string(summary.groups) +
            " groups the plan forecast as the fastest is within 3 % of the fastest measured\n";
  if (summary.memory_rows > 0)
    text += "memory: median absolute error " + percent_text(summary.memory_median) + " of " +
            std::to_string(summary.memory_rows) + " rows\n";
  return text;
}

}  // namespace

std::string set_text(const SetResult& result, bool rows, bool every) {
  const SetSummary summary = summary_of(result.set, result.forecast);
  std::string text = result.set.id + "\n" + result.set.title + " (" + result.set.source + ")\n";
  if (rows) text += "\n" + rows_text(result, every) + "\n";
  text += summary_text(summary);
  std::set<std::string> parts;
  for (const MeasuredRow& row : result.set.rows)
    if (!row.part.empty()) parts.insert(row.part);
  for (const std::string& part : parts) {
    const SetSummary s = summary_of(result.set, result.forecast, part);
    if (s.forecasts == 0) continue;
    text += part + ": " + counted(s.forecasts, "row") + ", median " + percent_text(s.median) + ", worst " +
            percent_text(s.worst) + ", bias " + signed_percent_text(s.bias) +
            (s.memory_rows > 0 ? ", memory " + percent_text(s.memory_median) : "") + "\n";
  }
  for (const auto& [reason, count] : summary.left_out)
    text += "left out: " + std::to_string(count) + (count == 1 ? " row: " : " rows: ") + reason + "\n";
  if (!result.forecast.parameters.empty()) text += parameters_text(result);
  for (const std::string& one : result.set.assumed) text += "assumed: " + one + "\n";
  return text + "\n";
}

std::string sets_text(const std::vector<SetResult>& results) {
  Table table({"set", "rows", "forecast", "mean", "median", "90 %", "worst", "nearest row", "one rate",
               "chosen", "memory"});
  for (const SetResult& one : results) {
    const SetSummary s = summary_of(one.set, one.forecast);
    const bool any = s.forecasts > 0;
    const auto percent = [&](double value) { return any ? percent_text(value) : "-"; };
    table.add({one.set.id, std::to_string(s.rows), std::to_string(s.forecasts), percent(s.mean),
               percent(s.median), percent(s.p90), percent(s.worst), known_percent(s.nearest),
               known_percent(s.roofline),
               s.groups > 0 ? std::to_string(s.chosen_well) + " of " + std::to_string(s.groups) : "-",
               s.memory_rows > 0 ? percent_text(s.memory_median) : "-"});
  }
  return table.text();
}

}  // namespace stepcast
