#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "sim/evidence/accuracy.hpp"
#include "sim/evidence/row_forecast.hpp"

/// Errors of a set's forecasts.
namespace stepcast {

/// Errors of the rows to which no parameter was fitted; of all rows if nothing is fitted. Rows that repeat a
/// row to fit are left out.
struct SetSummary {
  std::size_t rows = 0;
  Errors errors{};  ///< of the leading quantity
  Errors memory{};
  std::map<std::string, Errors> baselines{};  ///< as RowForecast::baselines, of the rows that have them
  /// Rows in which a baseline is farther from the measured value than the forecast.
  std::map<std::string, std::size_t> farther{};
  std::size_t groups = 0;  ///< of two rows or more
  /// Groups whose plan forecast as the fastest is within 3 % of the fastest measured.
  std::size_t ranked = 0;
  std::map<std::string, std::size_t> left_out{};  ///< rows by reason

  /// Errors of a baseline; without rows if none has it.
  [[nodiscard]] Errors baseline(const std::string& name) const;
};
/// \param part of the set; empty: all of it
SetSummary summary_of(const RowSet& set, const SetForecast& forecast, const std::string& part = "");

/// Whether some row is judged by another quantity than memory.
bool has_steps(const RowSet& set);

/// Quantities that some row contains, measured or as a blind forecast.
std::set<std::string> compared_quantities(const RowSet& set);

SetAccuracy accuracy_of(const RowSet& set, const SetForecast& forecast);

/// A set as JSON:
///
///     {"id", "title", "source", "limits",
///      "rows": [{"name", "use", "values", "left_out" or "fitted", "quantity", by quantity "measured",
///                "forecast", "low", "high" and "errors", "baselines", "blind_forecast", "fold", ...}],
///      "parameters": [{"name", "value", "unit", "low", "high", "left", "source", ...}], "correlation",
///      "chosen", "accepted", "objective", "left_out_error", "assumed", "unidentified", "folds", "forecasts"}
nlohmann::json json_of(const RowSet& set, const SetForecast& forecast);
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(FittedParameter, name, unit, source, value, low, high, left,
                                   least_of_folds, most_of_folds)

}  // namespace stepcast
