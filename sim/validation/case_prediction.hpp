#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "sim/records/result.hpp"
#include "sim/validation/published.hpp"
#include "sim/validation/quantities.hpp"

/// Predictions of published cases: what the source leaves open is fitted on the rows to fit, and every row is asked of
/// `stepcast predict`.
namespace stepcast {

/// What `stepcast predict` says to these words: {"--strategy", "ddp", ...}.
/// \param brief step, memory and breakdown alone
using AskPrediction = std::function<Result(const std::vector<std::string>& words, bool brief)>;

/// The central prediction, and the least and the largest that the rows to fit allow.
struct PredictedValue {
  std::vector<double> central, low, high;
};

/// What was fitted, for people and for files.
struct FittedParameter {
  std::string name, unit, source;
  double value = 0.0, low = 0.0, high = 0.0;  ///< two standard deviations of what is left
  double left = 1.0;  ///< of the range that it had before; near 1: the rows do not tell it
};

struct CasePrediction {
  std::vector<std::map<std::string, PredictedValue>> rows;  ///< as the case's
  std::vector<double> alpha_beta;  ///< of the central prediction, by row; 0: not known
  std::vector<FittedParameter> fitted;
  std::map<std::string, std::string> chosen;  ///< of the central prediction
  std::size_t accepted = 1;                   ///< combinations of choices that the rows allow
  double objective = 0.0;  ///< of the central prediction: squared misfits plus squared deviations
  std::vector<std::string> assumed;
  std::vector<std::string> unidentified;  ///< what stays open, and how the answer changes with it
};

/// The central prediction is the most probable one (fitter.hpp). The range of a quantity is over
///
///     all choices within kAccepted of the best, each with its own parameters, and
///     of the best fit of each combination of choices that are no numbers, the parameters that move the row's leading
///     quantity as far as the rows to fit allow
///
/// Rows to predict enter nowhere.
/// \throws InputError that names file and row, with what `stepcast predict` says against it
CasePrediction predict_case(const PublishedCase& published, const AskPrediction& ask);

/// Predicted over measured - 1 of the mean over the ranks that agree; nothing where the row has no such value.
std::optional<double> relative_error(const PublishedRow& row, const std::string& quantity,
                                     const PredictedValue& value);

/// `748.5 to 752.1`, or `748.5` where that is the same on paper; one per rank with ` | ` between.
std::string range_text(const PredictedValue& value);

}  // namespace stepcast
