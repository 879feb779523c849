#pragma once

#include <string>

#include "sim/validation/case_prediction.hpp"

/// Predictions of the shipped cases, made once for all tests.
namespace stepcast::tests {

PublishedCase shipped(const std::string& id);
const CasePrediction& prediction_of(const std::string& id);

/// Ids of the shipped cases that have a predictor.
std::vector<std::string> predicted_cases();

/// Checks that both predict the same for each row of the first.
void check_same(const CasePrediction& a, const CasePrediction& b);

}  // namespace stepcast::tests
