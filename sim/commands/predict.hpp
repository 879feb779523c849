#pragma once

#include "sim/cli/command.hpp"
#include "sim/replay/prediction.hpp"
#include "sim/validation/case_prediction.hpp"

namespace stepcast {

/// What `stepcast predict` is asked with these options. \throws UsageError for a value that cannot be
PredictionRequest prediction_request(const po::variables_map& values);

/// Asks `stepcast predict` in this process; what it has loaded serves all later questions.
AskPrediction asked_here();

}  // namespace stepcast
