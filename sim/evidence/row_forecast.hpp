#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "records/result.hpp"
#include "sim/evidence/rows.hpp"

/// Forecasts of rows, with parameters fitted to rows that are not forecast with them.
namespace stepcast {

/// The Result of `stepcast predict` with these words: {"--strategy", "ddp", ...}.
/// \param brief step, memory and breakdown alone
using AskPrediction = std::function<Result(const std::vector<std::string>& words, bool brief)>;

struct RowForecast {
  std::map<std::string, PredictedValue> values{};  ///< by quantity
  /// Baselines of the leading quantity (kRowBaselines in sim/evidence/trivial.hpp); and of tables `defaults`,
  /// the forecast with nothing fitted.
  std::map<std::string, double> baselines{};
  int fold = -1;          ///< that left the row out; -1: none
  bool fitted = false;    ///< parameters were fitted to it
  std::string refusal{};  ///< the reason if there is no forecast

  /// Mean of the central forecast; 0 if there is none.
  [[nodiscard]] double central(const std::string& quantity) const;
};

/// A parameter fitted to all known rows.
struct FittedParameter {
  std::string name, unit, source;
  double value = 0.0, low = 0.0, high = 0.0;  ///< two standard deviations of the posterior
  double left = 1.0;  ///< posterior over prior standard deviation; near 1: not determined
  double least_of_folds = 0.0, most_of_folds = 0.0;
};

struct SetForecast {
  std::vector<RowForecast> rows{};  ///< as the set's
  std::vector<FittedParameter> parameters{};
  std::vector<std::vector<double>> correlation{};  ///< of the parameters' posterior
  std::map<std::string, std::string> chosen{};     ///< values of the discrete parameters
  std::size_t accepted = 1;  ///< combinations of discrete parameters that the rows allow
  double objective = 0.0;    ///< squared residuals plus squared deviations
  /// Root mean square error of rows to fit forecast from the others; 0: too few.
  double left_out_error = 0.0;
  std::vector<std::string> unidentified{};  ///< choices left open, and how forecasts change with them
  std::size_t forecasts = 0;                ///< number of forecasts that were made
};

struct ForecastOptions {
  int jobs = 1;       ///< processes
  unsigned seed = 1;  ///< of the folds
};

/// Parameters are the most probable ones (fitter.hpp): least squares of ln(forecast / measured) / sigma with
/// the stated ranges as priors. Discrete parameters are searched. With `folds`, each fold is forecast with
/// parameters fitted to the other folds; rows are assigned to folds at random. A row of a table that cannot
/// be forecast has a `refusal`.
///
/// Ranges of rows in a file cover what the rows to fit leave open:
///
///     all combinations of discrete parameters within kAccepted of the best, each with its own parameters,
///     of the best of each combination of names
///         forecast * exp(+- sqrt(kAccepted max(1, mean residual^2)) sum over k of |g' v_k| sqrt(lambda_k)),
///     g the slopes of ln(forecast), v_k and lambda_k the axes of the posterior's covariance, and
///     for times and throughputs of rows to predict wider by `left_out_error`
///
/// \throws InputError that names file and row if a row in a file cannot be forecast
SetForecast forecast(const RowSet& set, const AskPrediction& ask, const ForecastOptions& options = {});

/// Forecast over measured - 1, of the mean over the ranks that agree; none without such a value.
std::optional<double> relative_error(const Row& row, const std::string& quantity,
                                     const PredictedValue& value);

/// Assumptions of the forecast other than fitted parameters, one sentence each.
std::vector<std::string> assumptions(const RowSet& set, const SetForecast& forecast);

}  // namespace stepcast
