#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "sim/validation/case_prediction.hpp"

/// Predictions against what was measured and against trivial predictors, row by row, by the quantity that a
/// row is judged by.
namespace stepcast {

/// How a row counts.
enum class RowStanding : std::uint8_t {
  kJudged,        ///< predicted and measured
  kRepeated,      ///< the same, but it differs from a fit row by nothing but the cores of its host
  kWithheld,      ///< predicted, no measurement here
  kFitted,        ///< a prediction may use it
  kNotPredicted,  ///< to be predicted, but there is no prediction
};
const char* to_text(RowStanding standing);

struct TrivialPredictor {
  const char* name;   ///< `ideal_scaling`
  const char* words;  ///< `ideal scaling`
};
inline constexpr std::array<TrivialPredictor, 3> kTrivialPredictors{
    {{"copy", "copying the fit row"},
     {"ideal_scaling", "ideal scaling"},
     {"alpha_beta", "compute plus alpha-beta"}}};

/// One number for a row, and by how much it misses the measured one where there is one.
struct Forecast {
  double value = 0.0;
  std::optional<double> error;  ///< relative
};

struct RowComparison {
  std::string case_id;
  std::string name;      ///< as `row_name`
  std::string quantity;  ///< by which the row is judged: `step_time_s`
  RowStanding standing = RowStanding::kNotPredicted;
  std::optional<double> measured;
  std::optional<PredictedValue> predicted;
  std::optional<double> error;              ///< of the central prediction, relative
  std::map<std::string, Forecast> trivial;  ///< by name of `kTrivialPredictors`
};

/// One per row, in the order of the case.
std::vector<RowComparison> compare_rows(const PublishedCase& published, const CasePrediction& prediction);

/// The error against the mean of all ranks where `measured` leaves some out; else nothing.
std::optional<double> error_of_all_ranks(const PublishedRow& row, const RowComparison& comparison);

/// Sentences that say of which trivial predictors the predictions of one case are nearer to what was
/// measured, and where not, by how much and why (`limits`). Errors that differ by less than 0.05 % of the
/// measurement are equal. Fit rows do not count; a case of withheld rows says so.
std::vector<std::string> verdict(const std::vector<RowComparison>& rows, const std::string& limits);

/// Median absolute relative error over so many rows.
struct ErrorSummary {
  int rows = 0;
  double median = 0.0;
  double worst = 0.0;
  std::string worst_row;  ///< with its case
};

/// A trivial predictor over the judged rows for which it has a value.
struct TrivialSummary {
  ErrorSummary errors;
  double ours = 0.0;  ///< median of the predictions over the same rows
};

struct ValidationSummary {
  ErrorSummary judged;
  std::map<std::string, TrivialSummary> trivial;
  ErrorSummary repeated;  ///< counted apart
  ErrorSummary fitted;    ///< how well the fits reproduce what they were fitted to
  int withheld = 0;
  int not_predicted = 0;
};
ValidationSummary summarize(const std::vector<RowComparison>& rows);

/// What the rows come to, and how many count otherwise:
///
///     summary: 5 rows predicted and measured: median absolute error 18.4 %, worst ...; copying the fit row
///     16.8 % of the same 5: nearer than stepcast; ideal scaling 50.7 % of 4 rows, where stepcast has 12.2 %
///
/// Medians that differ by less than 0.05 % are as near.
std::string to_text(const ValidationSummary& summary);

}  // namespace stepcast
