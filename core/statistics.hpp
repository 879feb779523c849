#pragma once

#include <vector>

namespace stepcast {

/// The middle value, or the mean of the two middle values. \pre values not empty
double median(std::vector<double> values);

/// \pre values not empty
double mean(const std::vector<double>& values);

/// Linear interpolation between order statistics; q in [0, 1]. \pre values not empty
double quantile(std::vector<double> values, double q);

/// Whether all are at least 0; a NaN is not.
bool none_negative(const std::vector<double>& values);

}  // namespace stepcast
