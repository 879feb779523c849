#pragma once

#include <map>
#include <string>
#include <vector>

#include "sim/evidence/row_forecast.hpp"

namespace stepcast {

/// Quantities of rows as functions of parameters; each forecast is made once per command line.
class RowModel {
 public:
  /// \param jobs child processes that forecast at once
  RowModel(const RowSet& set, const AskPrediction& ask, int jobs);

  /// Values of all parameters at these standard deviations and choices, by name.
  [[nodiscard]] Assignment parameters(const std::vector<double>& deviations, const Chosen& chosen) const;

  /// \throws InputError that names the row if it cannot be forecast
  const RowValues& at(std::size_t row, const Assignment& parameters);
  /// The same of several rows, computed in child processes. A row of a table that these parameters make
  /// impossible has no values.
  std::vector<const RowValues*> at(const std::vector<std::size_t>& rows, const Assignment& parameters);
  /// The leading quantity with uncontended communication; 0: not known.
  double alpha_beta(std::size_t row, const Assignment& parameters);

  /// ln(forecast / measured) / sigma by row and fitted quantity.
  [[nodiscard]] Residuals residuals(const std::vector<std::size_t>& rows, const Chosen& chosen);

  [[nodiscard]] std::size_t forecasts() const { return known_.size(); }

 private:
  using Words = std::vector<std::string>;
  [[nodiscard]] Result result_of(std::size_t row, const Words& words, bool brief) const;
  [[nodiscard]] RowValues values_of(std::size_t row, const Words& words) const;
  [[nodiscard]] RowScope scope_of(std::size_t row, const Configuration& run) const;

  const RowSet& set_;
  const AskPrediction& ask_;
  int jobs_;
  std::map<Words, RowValues> known_;
};

}  // namespace stepcast
