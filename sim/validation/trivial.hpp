#pragma once

#include <map>
#include <string>

#include "sim/validation/case_prediction.hpp"

/// Predictors of published rows that need no simulator. Every prediction stands beside them.
namespace stepcast {

/// By name, in the row's leading quantity; absent where a predictor has nothing to say:
///
///     copy            the value of the nearest fit row: the least ratio of the world sizes, then the same
///                     strategy, then the least distance in the list. A fit row is its own copy.
///     ideal_scaling   from the fit row with the fewest ranks n0, by n0 / n: total and epoch times, and
///                     step times of cases whose batch is global; throughput by n / n0; step times of
///                     cases with a batch per rank stay. Not where rows have no world size.
///     alpha_beta      a rank's step alone plus uncontended alpha-beta communication, as the case's model
///                     of the experiment has it with its central assumptions
///                     (`CasePrediction::alpha_beta`)
std::map<std::string, double> trivial_values(const PublishedCase& published, const CasePrediction& prediction,
                                             std::size_t row);

}  // namespace stepcast
