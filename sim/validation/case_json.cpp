#include "sim/validation/case_json.hpp"

namespace stepcast {
namespace {

using nlohmann::json;

/// Per rank a list, else a number.
json value_json(const std::string& key, const std::vector<double>& values) {
  return key.ends_with("_per_rank") ? json(values) : json(values.front());
}

json optional_json(const std::optional<double>& value) { return value ? json(*value) : json(nullptr); }

void add_predictions(json& row_json, const PublishedRow& row,
                     const std::map<std::string, PredictedValue>& prediction) {
  for (const auto& [key, value] : prediction) {
    row_json["predicted"][key] = value_json(key, value.central);
    row_json["predicted"][key + "_low"] = value_json(key, value.low);
    row_json["predicted"][key + "_high"] = value_json(key, value.high);
    if (const auto error = relative_error(row, key, value)) row_json["relative_errors"][key] = *error;
  }
}

json row_json(const PublishedRow& row, const std::map<std::string, PredictedValue>& prediction,
              const RowComparison& comparison) {
  json result = row.facts;
  result["withheld"] = row.withheld;
  result["standing"] = to_text(comparison.standing);
  result["quantity"] = comparison.quantity;
  result["measured"] = optional_json(comparison.measured);
  result["predicted"] = nullptr;
  result["relative_error"] = optional_json(comparison.error);
  add_predictions(result, row, prediction);
  if (const auto error = error_of_all_ranks(row, comparison)) result["relative_error_all_ranks"] = *error;
  for (const TrivialPredictor& predictor : kTrivialPredictors) {
    const auto found = comparison.trivial.find(predictor.name);
    const Forecast* known = found == comparison.trivial.end() ? nullptr : &found->second;
    result["trivial"][predictor.name] = known == nullptr ? json(nullptr) : json(known->value);
    result["trivial_relative_error"][predictor.name] =
        known == nullptr ? json(nullptr) : optional_json(known->error);
  }
  return result;
}

json errors_json(const ErrorSummary& errors) {
  json result{{"rows", errors.rows}};
  if (errors.rows == 0) return result;
  result["median_absolute_relative_error"] = errors.median;
  result["worst_absolute_relative_error"] = errors.worst;
  result["worst_row"] = errors.worst_row;
  return result;
}

}  // namespace

json case_json(const PublishedCase& published, const CasePrediction& prediction,
               const std::vector<RowComparison>& comparisons) {
  json rows = json::array();
  for (std::size_t i = 0; i < published.rows.size(); ++i)
    rows.push_back(row_json(published.rows[i], prediction.rows[i], comparisons[i]));
  if (!prediction.not_predicted.empty())
    for (json& row : rows) row["not_predicted"] = prediction.not_predicted;
  return {{"id", published.id},
          {"source", published.text("source", "")},
          {"rows", rows},
          {"assumed", prediction.assumed},
          {"unidentified", prediction.unidentified},
          {"verdict", verdict(comparisons, prediction.limits)}};
}

json summary_json(const ValidationSummary& summary) {
  json result{{"predicted_and_measured", errors_json(summary.judged)},
              {"trivial", json::object()},
              {"repeated", errors_json(summary.repeated)},
              {"fitted", errors_json(summary.fitted)},
              {"withheld", summary.withheld},
              {"not_predicted", summary.not_predicted}};
  for (const auto& [name, trivial] : summary.trivial) {
    result["trivial"][name] = errors_json(trivial.errors);
    result["trivial"][name]["median_of_predictions_over_same_rows"] = trivial.ours;
  }
  return result;
}

}  // namespace stepcast
