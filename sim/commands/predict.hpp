#pragma once

#include "sim/cli/command.hpp"
#include "sim/evidence/row_forecast.hpp"
#include "sim/replay/prediction.hpp"

namespace stepcast {

/// Options of a forecast, without those of outputs: declares them, and returns the given ones.
void declare_forecast_options(po::options_description& options);
OptionTexts forecast_options(const po::variables_map& values);

/// Request of `stepcast predict` with these options. \throws UsageError for a value that is not valid
PredictionRequest prediction_request(const po::variables_map& values);

/// Forecasts in this process; loaded inputs serve all later requests.
AskPrediction asked_here();

}  // namespace stepcast
