#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "sim/evidence/accuracy.hpp"
#include "sim/evidence/row_forecast.hpp"

/// Errors of a table's forecasts.
namespace stepcast {

/// Errors of the rows to which no parameter was fitted; of all rows if nothing is fitted.
struct SetSummary {
  std::size_t rows = 0;
  Errors errors{};  ///< of the step; of the memory in tables without steps
  Errors memory{};
  std::map<std::string, Errors> baselines{};  ///< as RowForecast::baselines, of the rows that have them
  std::size_t groups = 0;                     ///< of two rows or more
  /// Groups whose plan forecast as the fastest is within 3 % of the fastest measured.
  std::size_t ranked = 0;
  std::map<std::string, std::size_t> left_out{};  ///< rows by reason

  /// Errors of a baseline; without rows if none has it.
  [[nodiscard]] Errors baseline(const std::string& name) const;
};
/// \param part of the set; empty: all of it
SetSummary summary_of(const RowSet& set, const SetForecast& forecast, const std::string& part = "");

/// Whether rows have measured steps; else they have memory alone.
bool has_steps(const RowSet& set);
/// Quantity of a row's measured memory; empty if there is none.
std::string memory_quantity(const Row& row);

SetAccuracy accuracy_of(const RowSet& set, const SetForecast& forecast);
nlohmann::json json_of(const RowSet& set, const SetForecast& forecast);
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(FittedParameter, name, unit, source, value, low, high, left,
                                   least_of_folds, most_of_folds)

}  // namespace stepcast
