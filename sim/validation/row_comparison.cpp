#include "sim/validation/row_comparison.hpp"

#include <algorithm>
#include <cmath>

#include "sim/evidence/trivial.hpp"

namespace stepcast {
namespace {

constexpr double kEqual = 0.0005;  // of the measurement

/// Everything that says which experiment a row is, but the cores.
nlohmann::json experiment_of(const PublishedRow& row) {
  nlohmann::json facts;
  for (const char* key : {"strategy", "method", "world_size", "batch", "split", "granularity"})
    if (row.facts.contains(key)) facts[key] = row.facts[key];
  return facts;
}

Standing standing_of(const PublishedCase& published, const PublishedRow& row, const Case& one) {
  if (row.fit) return Standing::kFitted;
  if (!one.predicted) return Standing::kNotPredicted;
  if (!one.has_error()) return Standing::kWithheld;
  const bool repeats = std::any_of(
      published.rows.begin(), published.rows.end(),
      [&row](const PublishedRow& other) { return other.fit && experiment_of(other) == experiment_of(row); });
  return repeats ? Standing::kRepeated : Standing::kJudged;
}

std::size_t count_of(const std::vector<Case>& rows, Standing standing) {
  return static_cast<std::size_t>(std::count_if(
      rows.begin(), rows.end(), [standing](const Case& row) { return row.standing == standing; }));
}

/// Where the measured value lies with respect to the predicted range.
std::string place_in_range(const Case& row) {
  const auto& [value, low, high] = *row.predicted;
  const bool inside = row.measured->value >= low && row.measured->value <= high;
  return std::string(inside ? "inside" : "outside") + " the predicted range " + short_number(low) + " to " +
         short_number(high);
}

}  // namespace

std::vector<Case> compare_rows(const PublishedCase& published, const CasePrediction& prediction) {
  std::vector<Case> rows;
  for (std::size_t i = 0; i < published.rows.size(); ++i) {
    const PublishedRow& row = published.rows[i];
    Case one{.name = row_name(row), .source = published.id, .quantity = leading_quantity(row)};
    one.configuration.strategy = row.strategy;
    one.configuration.world_size = row.facts.contains("world_size") ? row.world_size : 0;
    if (const auto measured = row.measured(one.quantity)) one.measured = estimate_of({*measured});
    if (const auto found = prediction.rows[i].find(one.quantity); found != prediction.rows[i].end()) {
      const auto& [central, low, high] = found->second;
      one.predicted = {mean_of(central), mean_of(low), mean_of(high)};
    }
    one.standing = standing_of(published, row, one);
    if (i < prediction.alpha_beta.size() && prediction.alpha_beta[i].contains(one.quantity))
      one.trivial["alpha_beta"] = mean_of(prediction.alpha_beta[i].at(one.quantity));
    rows.push_back(std::move(one));
  }
  add_published_predictors(
      rows, published.number("global_batch").has_value(),
      [&](std::size_t row, const std::string& quantity) { return published.rows[row].measured(quantity); });
  return rows;
}

std::optional<double> error_of_all_ranks(const PublishedRow& row, const Case& comparison) {
  if (!comparison.predicted || row.ranks_left_out(comparison.quantity).empty()) return std::nullopt;
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
      const bool counts = row.standing == Standing::kJudged || row.standing == Standing::kRepeated;
      if (!counts || trivial == row.trivial.end()) continue;
      ++judged;
      const double ours = row.relative_error(), theirs = row.trivial_error(trivial->second);
      const double gain = std::abs(theirs) - std::abs(ours);
      if (gain > kEqual) {
        ++nearer;
        continue;
      }
      exceptions += "; " + row.name + (gain < -kEqual ? " is farther (" : " is as near (") +
                    signed_percent_text(ours) + " against " + signed_percent_text(theirs) +
                    "; measured lies " + place_in_range(row) + ")";
    }
    if (judged == 0) continue;
    beaten = beaten || !exceptions.empty();
    lines.push_back(std::string("nearer than ") + predictor.words + " on " + std::to_string(nearer) + " of " +
                    counted(judged, "row") + exceptions);
  }
  if (beaten && !limits.empty()) lines.push_back("why not everywhere: " + limits);
  if (const std::size_t withheld = count_of(rows, Standing::kWithheld); withheld > 0)
    lines.push_back(counted(withheld, "row") +
                    " predicted without a measurement to compare with (withheld by the source)");
  return lines;
}

ValidationSummary summarize(const std::vector<Case>& rows) {
  const auto over = [&](Standing standing) {
    return accuracy_of(rows, [standing](const Case& row) { return row.standing == standing; });
  };
  return {over(Standing::kJudged), over(Standing::kRepeated).errors, over(Standing::kFitted).errors,
          count_of(rows, Standing::kWithheld), count_of(rows, Standing::kNotPredicted)};
}

std::string to_text(const ValidationSummary& summary) {
  const auto errors = [](const ErrorSummary& one) {
    if (one.cases == 0) return std::string();
    return ": median absolute error " + percent_text(one.median) + ", worst " + percent_text(one.worst) +
           " (" + one.worst_case + ")";
  };
  const std::size_t judged = summary.judged.errors.cases;
  std::string text =
      "summary: " + counted(judged, "row") + " predicted and measured" + errors(summary.judged.errors);
  for (const TrivialPredictor& predictor : kTrivialPredictors) {
    const auto found = summary.judged.trivial.find(predictor.name);
    if (found == summary.judged.trivial.end()) continue;
    const auto& [theirs, ours] = found->second;
    text += std::string("; ") + predictor.words + " " + percent_text(theirs.median) + " of " +
            (theirs.cases == judged
                 ? "the same " + std::to_string(judged)
                 : counted(theirs.cases, "row") + ", where stepcast has " + percent_text(ours));
    const double gain = theirs.median - ours;
    text += gain < -kEqual ? ": nearer than stepcast" : gain > kEqual ? "" : ": as near as stepcast";
  }
  text += "\n  " + counted(summary.withheld, "row") + " predicted whose measurement is withheld";
  text += "\n  " + counted(summary.repeated.cases, "row") + " that only repeat a fit row, counted apart" +
          errors(summary.repeated);
  text += "\n  " + counted(summary.fitted.cases, "row") + " to fit, reproduced" + errors(summary.fitted);
  if (summary.not_predicted > 0) text += "\n  " + counted(summary.not_predicted, "row") + " not predicted";
  return text;
}

namespace {

/// Per rank a list, else a number.
nlohmann::json value_json(const std::string& key, const std::vector<double>& values) {
  return key.ends_with("_per_rank") ? nlohmann::json(values) : nlohmann::json(values.front());
}

nlohmann::json row_json(const PublishedRow& row, const std::map<std::string, PredictedValue>& prediction,
                        const Case& comparison) {
  nlohmann::json result = comparison;
  result.update(row.facts);
  result["withheld"] = row.withheld;
  for (const char* name : {"copy", "ideal_scaling", "alpha_beta"})
    if (!result["trivial"].contains(name)) result["trivial"][name] = nullptr;
  result["predicted"] = nullptr;
  for (const auto& [key, value] : prediction) {
    result["predicted"][key] = value_json(key, value.central);
    result["predicted"][key + "_low"] = value_json(key, value.low);
    result["predicted"][key + "_high"] = value_json(key, value.high);
    if (const auto error = relative_error(row, key, value)) result["relative_errors"][key] = *error;
  }
  if (const auto error = error_of_all_ranks(row, comparison)) result["relative_error_all_ranks"] = *error;
  return result;
}

}  // namespace

nlohmann::json case_json(const PublishedCase& published, const CasePrediction& prediction,
                         const std::vector<Case>& comparisons) {
  nlohmann::json rows = nlohmann::json::array();
  for (std::size_t i = 0; i < published.rows.size(); ++i) {
    rows.push_back(row_json(published.rows[i], prediction.rows[i], comparisons[i]));
    if (!prediction.not_predicted.empty()) rows.back()["not_predicted"] = prediction.not_predicted;
  }
  return {{"id", published.id},
          {"source", published.text("source", "")},
          {"rows", rows},
          {"assumed", prediction.assumed},
          {"unidentified", prediction.unidentified},
          {"verdict", verdict(comparisons, prediction.limits)}};
}

nlohmann::json summary_json(const ValidationSummary& summary) {
  return {{"predicted_and_measured", accuracy_json(summary.judged)},
          {"repeated", errors_json(summary.repeated)},
          {"fitted", errors_json(summary.fitted)},
          {"withheld", summary.withheld},
          {"not_predicted", summary.not_predicted}};
}

}  // namespace stepcast
