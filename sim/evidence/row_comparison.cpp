#include "sim/evidence/row_comparison.hpp"

#include <algorithm>
#include <cmath>

#include "core/error.hpp"
#include "core/number.hpp"
#include "core/ranges.hpp"
#include "core/table.hpp"
#include "sim/evidence/set_summary.hpp"
#include "sim/evidence/trivial.hpp"
#include "sim/strategies/strategy.hpp"

namespace stepcast {
namespace {

constexpr double kEqual = 0.0005;  // of the measurement

CaseRole role_of(const RowSet& set, const Row& row, const Case& one) {
  if (row.role == RowRole::kFit) return CaseRole::kFitted;
  if (!one.has_error()) return CaseRole::kWithheld;
  const auto without_cores = [](Assignment values) {
    values.erase("cores");
    return values;
  };
  const auto repeats = [&](const Row& other) {
    return other.role == RowRole::kFit && other.options == row.options &&
           other.values.names() == row.values.names() &&
           without_cores(other.values) == without_cores(row.values);
  };
  return std::ranges::any_of(set.rows, repeats) ? CaseRole::kRepeated : CaseRole::kJudged;
}

std::size_t count_of(const std::vector<Case>& rows, CaseRole role) {
  return static_cast<std::size_t>(std::ranges::count(rows, role, &Case::role));
}

/// Position of the measured value relative to the predicted range.
std::string place_in_range(const Case& row) {
  const auto& [value, low, high] = *row.predicted;
  const bool inside = row.measured->value >= low && row.measured->value <= high;
  return fmt::format("{} the predicted range {} to {}", inside ? "inside" : "outside", short_number(low),
                     short_number(high));
}

/// Ranks of a training; 0 if the row trains nothing or computes their number.
int ranks_of(const RowSet& set, const Row& row) {
  if (!strategies().find(*set.option(row, "strategy")).trains) return 0;
  const std::string* ranks = set.option(row, "world-size");
  return ranks == nullptr ? 1 : number_in<int>(*ranks).value_or(0);
}

/// Per rank a list, else a number.
nlohmann::json value_json(const std::string& key, const std::vector<double>& values) {
  return key.ends_with("_per_rank") ? nlohmann::json(values) : nlohmann::json(values.front());
}

nlohmann::json row_json(const RowSet& set, const Row& row, const RowForecast& forecast,
                        const Case& comparison) {
  nlohmann::json result = comparison;
  result.update(json_of(row.measured));
  result.update({{"name", row.name},
                 {"strategy", comparison.configuration.strategy},
                 {"role", row.role == RowRole::kFit ? "fit" : "predict"}});
  if (const int ranks = ranks_of(set, row); ranks > 0) result["world_size"] = ranks;
  if (!row.comment.empty()) result["comment"] = row.comment;
  if (row.uncertainty.sigma > 0.0) result["sigma"] = row.uncertainty.sigma;
  if (!row.blind.empty()) result["blind_forecast"] = row.blind;
  for (const char* name : {"copy", "ideal_scaling", "alpha_beta"})
    if (!result["trivial"].contains(name)) result["trivial"][name] = nullptr;
  result["predicted"] = nlohmann::json::object();
  for (const auto& [key, value] : forecast.values) {
    result["predicted"][key] = value_json(key, value.central);
    result["predicted"][key + "_low"] = value_json(key, value.low);
    result["predicted"][key + "_high"] = value_json(key, value.high);
    if (const auto error = relative_error(row, key, value)) result["relative_errors"][key] = *error;
  }
  if (const auto error = error_of_all_ranks(row, comparison)) result["relative_error_all_ranks"] = *error;
  return result;
}

}  // namespace

std::vector<Case> compare_rows(const RowSet& set, const SetForecast& forecast) {
  std::vector<Case> rows;
  for (const auto [i, row] : enumerated(set.rows)) {
    Case one{.name = row.name, .source = set.id(), .quantity = row.leading()};
    one.configuration.strategy = *set.option(row, "strategy");
    one.configuration.world_size = ranks_of(set, row);
    if (const auto measured = row.agreed(one.quantity)) one.measured = estimate_of({*measured});
    const auto found = forecast.rows[i].values.find(one.quantity);
    if (found == forecast.rows[i].values.end())
      throw InputError("{}: the forecast has no '{}' to compare with; it has {}", row.where, one.quantity,
                       joined(names_of(forecast.rows[i].values)));
    const auto& [central, low, high] = found->second;
    one.predicted = {mean_of(central), mean_of(low), mean_of(high)};
    if (row.blind.contains(one.quantity)) {
      const double value = row.blind[one.quantity].get<double>();
      const auto range = row.blind.contains("range") ? row.blind["range"].get<std::vector<double>>()
                                                     : std::vector{value, value};
      one.blind = {value, range.front(), range.back()};
    }
    one.role = role_of(set, row, one);
    one.trivial = forecast.rows[i].baselines;
    rows.push_back(std::move(one));
  }
  add_published_predictors(set, rows);
  return rows;
}

std::optional<double> error_of_all_ranks(const Row& row, const Case& comparison) {
  if (row.ranks_left_out(comparison.quantity).empty()) return std::nullopt;
  return comparison.predicted->value / *row.number(comparison.quantity) - 1.0;
}

std::vector<std::string> verdict(const std::vector<Case>& rows, const std::string& limits) {
  std::vector<std::string> lines;
  bool beaten = false;
  for (const TrivialPredictor& predictor : kTrivialPredictors) {
    std::size_t judged = 0, nearer = 0;
    std::string exceptions;
    for (const Case& row : rows) {
      const auto trivial = row.trivial.find(predictor.name);
      const bool counts = row.role == CaseRole::kJudged || row.role == CaseRole::kRepeated;
      if (!counts || trivial == row.trivial.end()) continue;
      ++judged;
      const double ours = row.relative_error(), theirs = *row.error_of(trivial->second);
      const double gain = std::abs(theirs) - std::abs(ours);
      if (gain > kEqual)
        ++nearer;
      else
        exceptions += fmt::format("; {} is {} ({} against {}; measured lies {})", row.name,
                                  gain < -kEqual ? "farther" : "as near", signed_percent_text(ours),
                                  signed_percent_text(theirs), place_in_range(row));
    }
    if (judged == 0) continue;
    beaten = beaten || !exceptions.empty();
    lines.push_back(fmt::format("nearer than {} on {} of {}{}", predictor.words, nearer,
                                counted(judged, "row"), exceptions));
  }
  if (beaten && !limits.empty()) lines.push_back("why not everywhere: " + limits);
  if (const std::size_t withheld = count_of(rows, CaseRole::kWithheld); withheld > 0)
    lines.push_back(counted(withheld, "row") +
                    " predicted without a measurement to compare with (withheld by the source)");
  return lines;
}

ValidationSummary summarize(const std::vector<Case>& rows) {
  const auto over = [&](CaseRole role) {
    return accuracy_of(rows, [role](const Case& row) { return row.role == role; });
  };
  return {over(CaseRole::kJudged), over(CaseRole::kRepeated).errors, over(CaseRole::kFitted).errors,
          count_of(rows, CaseRole::kWithheld)};
}

std::string to_text(const ValidationSummary& summary) {
  const auto errors = [](const Errors& one) {
    if (one.count == 0) return std::string();
    return fmt::format(": median absolute error {}, worst {} ({})", percent_text(one.relative.median),
                       percent_text(one.relative.worst), one.worst_row.name);
  };
  const std::size_t judged = summary.judged.errors.count;
  std::string text =
      "summary: " + counted(judged, "row") + " predicted and measured" + errors(summary.judged.errors);
  for (const TrivialPredictor& predictor : kTrivialPredictors) {
    const auto found = summary.judged.trivial.find(predictor.name);
    if (found == summary.judged.trivial.end()) continue;
    const auto& [theirs, ours] = found->second;
    const double gain = theirs.relative.median - ours;
    text += fmt::format(
        "; {} {} of {}{}", predictor.words, percent_text(theirs.relative.median),
        theirs.count == judged
            ? fmt::format("the same {}", judged)
            : fmt::format("{}, where stepcast has {}", counted(theirs.count, "row"), percent_text(ours)),
        gain < -kEqual  ? ": nearer than stepcast"
        : gain > kEqual ? ""
                        : ": as near as stepcast");
  }
  text += fmt::format(
      "\n  {} predicted whose measurement is withheld"
      "\n  {} that only repeat a fit row, counted apart{}\n  {} to fit, reproduced{}",
      counted(summary.withheld, "row"), counted(summary.repeated.count, "row"), errors(summary.repeated),
      counted(summary.fitted.count, "row"), errors(summary.fitted));
  return text;
}

nlohmann::json case_json(const RowSet& set, const SetForecast& forecast,
                         const std::vector<Case>& comparisons) {
  nlohmann::json rows = nlohmann::json::array();
  for (std::size_t i = 0; i < set.rows.size(); ++i)
    rows.push_back(row_json(set, set.rows[i], forecast.rows[i], comparisons[i]));
  return {{"id", set.id()},
          {"title", set.title},
          {"source", set.source},
          {"rows", rows},
          {"fitted", forecast.parameters},
          {"chosen", forecast.chosen},
          {"accepted", forecast.accepted},
          {"objective", forecast.objective},
          {"left_out_error", forecast.left_out_error},
          {"assumed", assumptions(set, forecast)},
          {"unidentified", forecast.unidentified},
          {"verdict", verdict(comparisons, set.limits)}};
}

nlohmann::json summary_json(const ValidationSummary& summary) {
  return {{"predicted_and_measured", accuracy_json(summary.judged)},
          {"repeated", errors_json(summary.repeated)},
          {"fitted", errors_json(summary.fitted)},
          {"withheld", summary.withheld}};
}

}  // namespace stepcast
