#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "plots/figure.hpp"

/// What the figures of the lab share.
namespace stepcast {

/// \throws InputError when there is not exactly one report, or one without cases.
const LabReport& lab_of(const FigureInput& input);

/// Tics at 1, 2 and 5 times the powers of ten from `low` to `high`: `(1, 2, 5, 10)` for gnuplot. \pre 0 < low
std::string one_two_five_tics(double low, double high);

/// `NaN` in `columns` columns: a block without rows would shift the index of those after it.
std::string empty_row(std::size_t columns);

}  // namespace stepcast
