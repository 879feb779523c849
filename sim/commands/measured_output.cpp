#include "sim/commands/measured_output.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>

#include "core/ranges.hpp"
#include "core/table.hpp"
#include "core/units.hpp"

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

std::string rows_text(const SetResult& result, bool every) {
  const bool steps = has_steps(result.set);
  std::vector<std::size_t> rows;
  const auto quantity = [&](std::size_t i) {
    return steps ? std::string(kStepTime) : memory_quantity(result.set.rows[i]);
  };
  const auto error = [&](std::size_t i) {
    return result.forecast.rows[i].central(quantity(i)) / *result.set.rows[i].number(quantity(i)) - 1.0;
  };
  for (std::size_t i = 0; i < result.set.rows.size(); ++i)
    if (result.set.rows[i].measured.contains(quantity(i)) && !result.forecast.rows[i].values.empty())
      rows.push_back(i);
  if (!every) {
    std::ranges::sort(rows, std::greater<>(), [&](std::size_t i) { return std::abs(error(i)); });
    rows.resize(std::min(rows.size(), kWorstRows));
  }
  Table table({every ? "row" : "worst rows", "measured", "forecast", "error", "nearest neighbour",
               "constant throughput", "plan"});
  for (const std::size_t i : rows) {
    const Row& row = result.set.rows[i];
    const RowForecast& forecast = result.forecast.rows[i];
    const auto text = [&](double value) { return steps ? to_text(Seconds(value)) : to_text(Bytes(value)); };
    const auto baseline = [&](const char* name) {
      const auto found = optional_at(forecast.baselines, name);
      return found ? signed_percent_text(*found / *row.number(quantity(i)) - 1.0) : "-";
    };
    table.add({row.name + (forecast.fitted ? " [fitted]" : ""), text(*row.number(quantity(i))),
               text(forecast.central(quantity(i))), signed_percent_text(error(i)),
               baseline("nearest_neighbour"), baseline("constant_throughput"), plan_of(row)});
  }
  return table.text();
}

std::string parameters_text(const SetResult& result) {
  Table table({"fitted", "value", "range", "of the folds", "range left"});
  for (const FittedParameter& one : result.forecast.parameters)
    table.add({one.name, short_number(one.value) + one.unit,
               short_number(one.low) + " to " + short_number(one.high),
               result.set.folds > 0
                   ? short_number(one.least_of_folds) + " to " + short_number(one.most_of_folds)
                   : "-",
               percent_text(one.left, 0) + (one.left > 0.5 ? ": not determined" : "")});
  std::string text = table.text();
  for (std::size_t i = 0; i < result.forecast.correlation.size(); ++i)
    for (std::size_t j = 0; j < i; ++j)
      if (constexpr double kTogether = 0.9; std::abs(result.forecast.correlation[i][j]) > kTogether)
        text += fmt::format("{} and {} are determined together (correlation {})\n",
                            result.forecast.parameters[j].name, result.forecast.parameters[i].name,
                            short_number(result.forecast.correlation[i][j]));
  return text;
}

/// Median of a baseline's errors.
std::string median_text(const Errors& errors) {
  return errors.count > 0 ? percent_text(errors.relative.median) : "-";
}

std::string statistics_text(const Errors& errors) {
  const auto& [mean, median, p90, worst] = errors.relative;
  return fmt::format("mean {}, median {}, 90 % within {}, worst {}; bias {}\n", percent_text(mean),
                     percent_text(median), percent_text(p90), percent_text(worst),
                     signed_percent_text(errors.bias));
}

std::string summary_text(const RowSet& set, const SetSummary& summary) {
  std::string text = fmt::format("{} of {} forecast", summary.errors.count, counted(summary.rows, "row"));
  if (summary.errors.count == 0) return text + "\n";
  text += fmt::format(": absolute error of the {}: ", has_steps(set) ? "step" : "memory") +
          statistics_text(summary.errors);
  if (!has_steps(set)) return text;
  if (!set.free.empty()) text += "with nothing fitted: " + statistics_text(summary.baseline("defaults"));
  text +=
      fmt::format("baselines: nearest neighbour scaled by work, median {}; constant throughput, median {}\n",
                  median_text(summary.baseline("nearest_neighbour")),
                  median_text(summary.baseline("constant_throughput")));
  if (summary.groups > 0)
    text += fmt::format(
        "ranking: in {} of {} groups the plan forecast as the fastest is within 3 % of the fastest "
        "measured\n",
        summary.ranked, summary.groups);
  if (summary.memory.count > 0)
    text += fmt::format("memory: median absolute error {} of {}\n", median_text(summary.memory),
                        counted(summary.memory.count, "row"));
  return text;
}

}  // namespace

std::string set_text(const SetResult& result, bool rows, bool every) {
  const SetSummary summary = summary_of(result.set, result.forecast);
  std::string text = fmt::format("{}\n{} ({})\n", result.set.id(), result.set.title, result.set.source);
  if (rows) text += "\n" + rows_text(result, every) + "\n";
  text += summary_text(result.set, summary);
  std::set<std::string> parts;
  for (const Row& row : result.set.rows)
    if (!row.part.empty()) parts.insert(row.part);
  for (const std::string& part : parts) {
    const SetSummary s = summary_of(result.set, result.forecast, part);
    if (s.errors.count == 0) continue;
    text += fmt::format("{}: {}, median {}, worst {}, bias {}{}\n", part, counted(s.errors.count, "row"),
                        percent_text(s.errors.relative.median), percent_text(s.errors.relative.worst),
                        signed_percent_text(s.errors.bias),
                        s.memory.count > 0 ? ", memory " + median_text(s.memory) : "");
  }
  for (const auto& [reason, count] : summary.left_out)
    text += fmt::format("left out: {}: {}\n", counted(count, "row"), reason);
  if (!result.forecast.parameters.empty()) text += parameters_text(result);
  for (const std::string& one : result.set.assumed) text += "assumed: " + one + "\n";
  return text + "\n";
}

}  // namespace stepcast
