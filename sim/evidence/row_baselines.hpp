#pragma once

#include <vector>

#include "sim/evidence/row_forecast.hpp"

namespace stepcast {

/// Adds the baselines `nearest_neighbour` and `constant_throughput` of a table's rows, each from known rows
/// other than itself: those of other folds, or those that parameters were fitted to. Rows without another
/// have none.
void add_table_baselines(const RowSet& set, const std::vector<std::size_t>& rows, SetForecast& forecast);

}  // namespace stepcast
