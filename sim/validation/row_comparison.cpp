#include "sim/validation/row_comparison.hpp"

#include <algorithm>
#include <cmath>

#include "sim/core/statistics.hpp"
#include "sim/validation/trivial.hpp"

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

bool repeats_a_fit_row(const PublishedCase& published, const PublishedRow& row) {
  return std::any_of(published.rows.begin(), published.rows.end(), [&row](const PublishedRow& other) {
    return other.fit && experiment_of(other) == experiment_of(row);
  });
}

RowStanding standing_of(const PublishedCase& published, const PublishedRow& row,
                        const RowComparison& comparison) {
  if (row.fit) return RowStanding::kFitted;
  if (!comparison.predicted) return RowStanding::kNotPredicted;
  if (!comparison.error) return RowStanding::kWithheld;
  return repeats_a_fit_row(published, row) ? RowStanding::kRepeated : RowStanding::kJudged;
}

std::string counted(int rows) { return std::to_string(rows) + (rows == 1 ? " row" : " rows"); }

/// Where the measured value lies with respect to the predicted range.
std::string place_in_range(const RowComparison& row) {
  const double low = mean_of(row.predicted->low);
  const double high = mean_of(row.predicted->high);
  const bool inside = *row.measured >= low && *row.measured <= high;
  return std::string(inside ? "inside" : "outside") + " the predicted range " + short_number(low) + " to " +
         short_number(high);
}

ErrorSummary errors_of(const std::vector<std::pair<double, std::string>>& errors) {
  ErrorSummary summary;
  summary.rows = static_cast<int>(errors.size());
  if (errors.empty()) return summary;
  std::vector<double> sizes;
  for (const auto& [error, name] : errors) {
    sizes.push_back(std::abs(error));
    if (std::abs(error) < summary.worst) continue;
    summary.worst = std::abs(error);
    summary.worst_row = name;
  }
  summary.median = median(sizes);
  return summary;
}

/// `; copying the fit row 16.8 % of the same 5: nearer than stepcast`,
/// `; ideal scaling 50.7 % of 4 rows, where stepcast has 12.2 %`
std::string beside(const std::string& words, const TrivialSummary& trivial, int judged) {
  std::string text = "; " + words + " " + percent_text(trivial.errors.median) + " of ";
  if (trivial.errors.rows == judged)
    text += "the same " + std::to_string(judged);
  else
    text += counted(trivial.errors.rows) + ", where stepcast has " + percent_text(trivial.ours);
  const double gain = trivial.errors.median - trivial.ours;
  if (gain < -kEqual) return text + ": nearer than stepcast";
  return gain > kEqual ? text : text + ": as near as stepcast";
}

}  // namespace

const char* to_text(RowStanding standing) {
  switch (standing) {
    case RowStanding::kJudged:
      return "predicted";
    case RowStanding::kRepeated:
      return "repeats a fit row";
    case RowStanding::kWithheld:
      return "withheld";
    case RowStanding::kFitted:
      return "fitted";
    case RowStanding::kNotPredicted:
      break;
  }
  return "not predicted";
}

std::vector<RowComparison> compare_rows(const PublishedCase& published, const CasePrediction& prediction) {
  std::vector<RowComparison> rows;
  for (std::size_t i = 0; i < published.rows.size(); ++i) {
    const PublishedRow& row = published.rows[i];
    RowComparison one;
    one.case_id = published.id;
    one.name = row_name(row);
    one.quantity = leading_quantity(row);
    one.measured = row.measured(one.quantity);
    if (const auto found = prediction.rows[i].find(one.quantity); found != prediction.rows[i].end()) {
      one.predicted = found->second;
      one.error = relative_error(row, one.quantity, found->second);
    }
    for (const auto& [name, value] : trivial_values(published, prediction, i)) {
      Forecast forecast{value, {}};
      if (one.measured && *one.measured > 0.0) forecast.error = value / *one.measured - 1.0;
      one.trivial[name] = forecast;
    }
    one.standing = standing_of(published, row, one);
    rows.push_back(std::move(one));
  }
  return rows;
}

std::optional<double> error_of_all_ranks(const PublishedRow& row, const RowComparison& comparison) {
  if (!comparison.predicted || row.ranks_left_out(comparison.quantity).empty()) return std::nullopt;
  return mean_of(comparison.predicted->central) / *row.number(comparison.quantity) - 1.0;
}

std::vector<std::string> verdict(const std::vector<RowComparison>& rows, const std::string& limits) {
  std::vector<std::string> lines;
  bool beaten = false;
  for (const TrivialPredictor& predictor : kTrivialPredictors) {
    int judged = 0;
    int nearer = 0;
    std::vector<std::string> exceptions;
    for (const RowComparison& row : rows) {
      const auto trivial = row.trivial.find(predictor.name);
      const bool counts = row.standing == RowStanding::kJudged || row.standing == RowStanding::kRepeated;
      if (!counts || trivial == row.trivial.end()) continue;
      ++judged;
      const double gain = std::abs(*trivial->second.error) - std::abs(*row.error);
      if (gain > kEqual) {
        ++nearer;
        continue;
      }
      exceptions.push_back(row.name + (gain < -kEqual ? " is farther (" : " is as near (") +
                           signed_percent_text(*row.error) + " against " +
                           signed_percent_text(*trivial->second.error) + "; measured lies " +
                           place_in_range(row) + ")");
    }
    if (judged == 0) continue;
    std::string line = std::string("nearer than ") + predictor.words + " on " + std::to_string(nearer) +
                       " of " + counted(judged);
    for (const std::string& exception : exceptions) line += "; " + exception;
    beaten = beaten || !exceptions.empty();
    lines.push_back(std::move(line));
  }
  if (beaten && !limits.empty()) lines.push_back("why not everywhere: " + limits);
  const auto withheld = std::count_if(rows.begin(), rows.end(), [](const RowComparison& row) {
    return row.standing == RowStanding::kWithheld;
  });
  if (withheld > 0)
    lines.push_back(counted(static_cast<int>(withheld)) +
                    " predicted without a measurement to compare with (withheld by the source)");
  return lines;
}

ValidationSummary summarize(const std::vector<RowComparison>& rows) {
  std::vector<std::pair<double, std::string>> judged;
  std::vector<std::pair<double, std::string>> repeated;
  std::vector<std::pair<double, std::string>> fitted;
  std::map<std::string, std::vector<std::pair<double, std::string>>> trivial;
  std::map<std::string, std::vector<std::pair<double, std::string>>> beside_trivial;  // ours, of its rows
  ValidationSummary summary;
  for (const RowComparison& row : rows) {
    const std::string name = row.case_id + " " + row.name;
    if (row.standing == RowStanding::kWithheld) ++summary.withheld;
    if (row.standing == RowStanding::kNotPredicted) ++summary.not_predicted;
    if (!row.error) continue;
    if (row.standing == RowStanding::kFitted) fitted.emplace_back(*row.error, name);
    if (row.standing == RowStanding::kRepeated) repeated.emplace_back(*row.error, name);
    if (row.standing != RowStanding::kJudged) continue;
    judged.emplace_back(*row.error, name);
    for (const auto& [predictor, forecast] : row.trivial) {
      trivial[predictor].emplace_back(*forecast.error, name);
      beside_trivial[predictor].emplace_back(*row.error, name);
    }
  }
  summary.judged = errors_of(judged);
  summary.repeated = errors_of(repeated);
  summary.fitted = errors_of(fitted);
  for (const auto& [predictor, errors] : trivial)
    summary.trivial[predictor] = {errors_of(errors), errors_of(beside_trivial.at(predictor)).median};
  return summary;
}

std::string to_text(const ValidationSummary& summary) {
  const auto errors = [](const ErrorSummary& one) {
    if (one.rows == 0) return std::string();
    return ": median absolute error " + percent_text(one.median) + ", worst " + percent_text(one.worst) +
           " (" + one.worst_row + ")";
  };
  std::string text =
      "summary: " + counted(summary.judged.rows) + " predicted and measured" + errors(summary.judged);
  for (const TrivialPredictor& predictor : kTrivialPredictors) {
    const auto found = summary.trivial.find(predictor.name);
    if (found != summary.trivial.end()) text += beside(predictor.words, found->second, summary.judged.rows);
  }
  text += "\n  " + counted(summary.withheld) + " predicted whose measurement is withheld";
  text += "\n  " + counted(summary.repeated.rows) + " that only repeat a fit row, counted apart" +
          errors(summary.repeated);
  text += "\n  " + counted(summary.fitted.rows) + " to fit, reproduced" + errors(summary.fitted);
  if (summary.not_predicted > 0) text += "\n  " + counted(summary.not_predicted) + " not predicted";
  return text;
}

}  // namespace stepcast
