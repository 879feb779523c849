#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "records/result.hpp"
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
  double objective = 0.0;       ///< of the central prediction: squared misfits plus squared deviations
  double left_out_error = 0.0;  ///< of rows to fit predicted from the others, root mean square; 0: too few
  std::vector<std::string> assumed;
  std::vector<std::string> unidentified;  ///< what stays open, and how the answer changes with it
};

/// The central prediction is the most probable one (fitter.hpp). Its range is what the rows to fit leave open, of which rows
/// to predict know nothing:
///
///     all choices within kAccepted of the best, each with its own parameters, and
///     of the best fit of each combination of choices that are no numbers, all parameters within their stated ranges with
///     sum misfit^2 <= sum misfit_best^2 + kAccepted max(1, mean misfit_best^2)  (misfit: ln(predicted / measured) / sigma),
///     as far as they move the row's leading quantity (fitted_range), and
///     times and throughputs wider to both sides by the root mean square error of rows to fit that are predicted from the
///     other ones, where there are three or more
///
/// Sigma is what the source says of its own measuring. So the second part is noise, and all that the source leaves open; the
/// third is what the model misses where it can be seen. With fewer rows to fit nothing shows that, and ranges are as narrow as
/// if the model were exact.
/// \throws InputError that names file and row, with what `stepcast predict` says against it
CasePrediction predict_case(const PublishedCase& published, const AskPrediction& ask);

/// Predicted over measured - 1 of the mean over the ranks that agree; nothing where the row has no such value.
std::optional<double> relative_error(const PublishedRow& row, const std::string& quantity,
                                     const PredictedValue& value);

/// `748.5 to 752.1`, or `748.5` where that is the same on paper; one per rank with ` | ` between.
std::string range_text(const PredictedValue& value);

}  // namespace stepcast
