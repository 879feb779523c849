#include "sim/validation/case_json.hpp"

namespace stepcast {
namespace {

using nlohmann::json;

/// Per rank a list, else a number.
json value_json(const std::string& key, const std::vector<double>& values) {
  return key.ends_with("_per_rank") ? json(values) : json(values.front());
}

json row_json(const PublishedRow& row, const std::map<std::string, PredictedValue>& prediction) {
  json result = row.facts;
  result["withheld"] = row.withheld;
  result["predicted"] = nullptr;
  result["relative_error"] = nullptr;
  for (const auto& [key, value] : prediction) {
    result["predicted"][key] = value_json(key, value.central);
    result["predicted"][key + "_low"] = value_json(key, value.low);
    result["predicted"][key + "_high"] = value_json(key, value.high);
    const auto error = relative_error(row, key, value);
    if (!error) continue;
    result["relative_errors"][key] = *error;
    if (key == leading_quantity(row)) result["relative_error"] = *error;
  }
  return result;
}

}  // namespace

json case_json(const PublishedCase& published, const CasePrediction& prediction) {
  json rows = json::array();
  for (std::size_t i = 0; i < published.rows.size(); ++i)
    rows.push_back(row_json(published.rows[i], prediction.rows[i]));
  if (!prediction.not_predicted.empty())
    for (json& row : rows) row["not_predicted"] = prediction.not_predicted;
  return {{"id", published.id},
          {"source", published.text("source", "")},
          {"rows", rows},
          {"assumed", prediction.assumed},
          {"unidentified", prediction.unidentified}};
}

}  // namespace stepcast
