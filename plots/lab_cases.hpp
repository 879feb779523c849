#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "plots/figure.hpp"

/// What the figures of the lab share.
namespace stepcast {

/// \throws InputError when there is not exactly one report, or one without cases.
const LabReport& lab_of(const FigureInput& input);

/// Tics of a logarithmic axis at 1, 2 and 5 times the powers of ten from `low` to `high`, as gnuplot takes
/// them: `('1' 1, '2' 2)`; at finer steps where fewer than four fit. \pre 0 < low
std::string log_tics(double low, double high);

/// `NaN` in `columns` columns: a block without rows would shift the index of those after it.
std::string empty_row(std::size_t columns);

}  // namespace stepcast
