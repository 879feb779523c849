#pragma once

#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/statistics.hpp"
#include "sim/validation/case_prediction.hpp"
#include "sim/validation/measured_rows.hpp"

/// Forecasts of measured rows, with parameters fitted to rows that are not forecast with them.
namespace stepcast {

struct RowForecast {
  double step_s = 0.0;  ///< 0: refused, see `refusal`
  double memory = 0.0;  ///< bytes of the fullest rank, or the last
  // Trivial ones, where another row is known.
  std::optional<double> nearest_s{};   ///< the nearest known row, scaled by work
  std::optional<double> roofline_s{};  ///< all work at one rate, the median of known rows
  int fold = -1;                       ///< that left the row out
  bool fitted = false;                 ///< parameters were fitted to it
  std::string refusal;
};

/// A parameter fitted to all known rows.
struct RowParameter {
  std::string name, unit, source;
  double value = 0.0, low = 0.0, high = 0.0;  ///< two standard deviations of what is left
  double left = 1.0;               ///< of the range that it had before: near 1 the rows do not tell it
  double least = 0.0, most = 0.0;  ///< over the folds
};

struct SetForecast {
  std::vector<RowForecast> rows;
  std::vector<RowParameter> parameters;
  std::vector<std::vector<double>> correlation;  ///< of the parameters, as their posterior has it
  std::size_t questions = 0;                     ///< predictions that were made
};

struct ForecastOptions {
  int jobs = 1;         ///< processes
  unsigned seed = 1;    ///< of the folds
  double sigma = 0.05;  ///< relative standard deviation of what the model misses, against which ranges count
};

/// Parameters are the most probable ones (fitter.hpp: least squares of ln(forecast / measured) / sigma with the ranges as
/// priors), fitted to known rows; of a cross-validation each fold's rows are forecast with parameters fitted to the other
/// folds, whose rows are drawn once with the seed. A row that `ask` refuses is forecast by nobody, and says why.
SetForecast forecast(const MeasuredSet& set, const AskPrediction& ask, const ForecastOptions& options);

/// Errors forecast/measured - 1 of rows that were not fitted; of all rows where nothing is fitted.
struct SetSummary {
  std::size_t rows = 0, forecasts = 0;
  double mean = 0.0, median = 0.0, p90 = 0.0, worst = 0.0, bias = 0.0;  ///< of absolute errors; bias signed
  std::optional<double> nearest{}, roofline{};  ///< their median absolute errors, where another row is known
  std::size_t memory_rows = 0;
  double memory_median = 0.0;
  std::size_t groups = 0,
              chosen_well = 0;  ///< groups of two rows or more; the first is within 3 % of the best
  std::map<std::string, std::size_t> left_out;  ///< by reason
};
/// \param part of the set alone; "": all of it
SetSummary summary_of(const MeasuredSet& set, const SetForecast& forecast, const std::string& part = "");
nlohmann::json json_of(const MeasuredSet& set, const SetForecast& forecast);

}  // namespace stepcast
