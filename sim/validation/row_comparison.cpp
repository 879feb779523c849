#include "sim/validation/row_comparison.hpp"

#include <algorithm>
#include <cmath>

#include "sim/evidence/trivial.hpp"
#include "sim/strategies/strategy.hpp"

namespace stepcast {
namespace {

constexpr double kEqual = 0.0005;  // of the measurement

Standing standing_of(const PublishedCase& published, const PublishedRow& row, const Case& one) {
  if (row.fit) return Standing::kFitted;
  if (!one.has_error()) return Standing::kWithheld;
  const auto repeats = [&row](const PublishedRow& other) {
    if (!other.fit || other.options != row.options || other.with.size() != row.with.size()) return false;
    return std::equal(row.with.begin(), row.with.end(), other.with.begin(), [](const auto& a, const auto& b) {
      return a.first == "cores" ? a.first == b.first : a == b;
    });
  };
  return std::any_of(published.rows.begin(), published.rows.end(), repeats) ? Standing::kRepeated
                                                                            : Standing::kJudged;
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
    Case one{.name = row.name, .source = published.id, .quantity = row.leading()};
    one.configuration.strategy = row.strategy;
    // To ranks that train nothing nothing is dealt out.
    one.configuration.world_size = strategies().find(row.strategy).trains ? row.world_size : 0;
    if (const auto measured = row.agreed(one.quantity)) one.measured = estimate_of({*measured});
    const auto& [central, low, high] = prediction.rows[i].at(one.quantity);
    one.predicted = {mean_of(central), mean_of(low), mean_of(high)};
    if (row.blind.contains(one.quantity)) {
      const double value = row.blind[one.quantity].get<double>();
      const auto range = row.blind.contains("range") ? row.blind["range"].get<std::vector<double>>()
                                                     : std::vector{value, value};
      one.blind = {value, range.front(), range.back()};
    }
    one.standing = standing_of(published, row, one);
    if (prediction.alpha_beta[i] > 0.0) one.trivial["alpha_beta"] = prediction.alpha_beta[i];
    rows.push_back(std::move(one));
  }
  add_published_predictors(rows, published.global_batch, [&](std::size_t row, const std::string& quantity) {
    return published.rows[row].agreed(quantity);
  });
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
  const auto errors = [](const Errors& one) {
    if (one.count == 0) return std::string();
    return ": median absolute error " + percent_text(one.relative.median) + ", worst " +
           percent_text(one.relative.worst) + " (" + one.worst_row.name + ")";
  };
  const std::size_t judged = summary.judged.errors.count;
  std::string text =
      "summary: " + counted(judged, "row") + " predicted and measured" + errors(summary.judged.errors);
  for (const TrivialPredictor& predictor : kTrivialPredictors) {
    const auto found = summary.judged.trivial.find(predictor.name);
    if (found == summary.judged.trivial.end()) continue;
    const auto& [theirs, ours] = found->second;
    text += std::string("; ") + predictor.words + " " + percent_text(theirs.relative.median) + " of " +
            (theirs.count == judged
                 ? "the same " + std::to_string(judged)
                 : counted(theirs.count, "row") + ", where stepcast has " + percent_text(ours));
    const double gain = theirs.relative.median - ours;
    text += gain < -kEqual ? ": nearer than stepcast" : gain > kEqual ? "" : ": as near as stepcast";
  }
  text += "\n  " + counted(summary.withheld, "row") + " predicted whose measurement is withheld";
  text += "\n  " + counted(summary.repeated.count, "row") + " that only repeat a fit row, counted apart" +
          errors(summary.repeated);
  text += "\n  " + counted(summary.fitted.count, "row") + " to fit, reproduced" + errors(summary.fitted);
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
  result.update(row.measured);
  result.update({{"name", row.name}, {"strategy", row.strategy}, {"role", row.fit ? "fit" : "predict"}});
  if (row.world_size > 0) result["world_size"] = row.world_size;
  if (!row.comment.empty()) result["comment"] = row.comment;
  if (row.sigma) result["sigma"] = *row.sigma;
  if (!row.blind.empty()) result["blind_forecast"] = row.blind;
  for (const char* name : {"copy", "ideal_scaling", "alpha_beta"})
    if (!result["trivial"].contains(name)) result["trivial"][name] = nullptr;
  result["predicted"] = nlohmann::json::object();
  for (const auto& [key, value] : prediction) {
    result["predicted"][key] = value_json(key, value.central);
    result["predicted"][key + "_low"] = value_json(key, value.low);
    result["predicted"][key + "_high"] = value_json(key, value.high);
    if (const auto error = relative_error(row, key, value)) result["relative_errors"][key] = *error;
  }
  if (const auto error = error_of_all_ranks(row, comparison)) result["relative_error_all_ranks"] = *error;
  return result;
}

nlohmann::json fitted_json(const FittedParameter& one) {
  return {{"name", one.name}, {"value", one.value}, {"unit", one.unit},    {"low", one.low},
          {"high", one.high}, {"left", one.left},   {"source", one.source}};
}

}  // namespace

nlohmann::json case_json(const PublishedCase& published, const CasePrediction& prediction,
                         const std::vector<Case>& comparisons) {
  nlohmann::json rows = nlohmann::json::array(), fitted = nlohmann::json::array();
  for (std::size_t i = 0; i < published.rows.size(); ++i)
    rows.push_back(row_json(published.rows[i], prediction.rows[i], comparisons[i]));
  for (const FittedParameter& one : prediction.fitted) fitted.push_back(fitted_json(one));
  return {{"id", published.id},
          {"title", published.title},
          {"source", published.source},
          {"rows", rows},
          {"fitted", fitted},
          {"chosen", prediction.chosen},
          {"accepted", prediction.accepted},
          {"objective", prediction.objective},
          {"left_out_error", prediction.left_out_error},
          {"assumed", prediction.assumed},
          {"unidentified", prediction.unidentified},
          {"verdict", verdict(comparisons, published.limits)}};
}

nlohmann::json summary_json(const ValidationSummary& summary) {
  return {{"predicted_and_measured", accuracy_json(summary.judged)},
          {"repeated", errors_json(summary.repeated)},
          {"fitted", errors_json(summary.fitted)},
          {"withheld", summary.withheld},
          {"not_predicted", summary.not_predicted}};
}

}  // namespace stepcast
