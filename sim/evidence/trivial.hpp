#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "sim/evidence/case.hpp"
#include "sim/evidence/row_forecast.hpp"

/// Predictors too simple to need a simulator. Every table of errors stands beside them.
namespace stepcast {

struct TrivialPredictor {
  const char* name;   ///< `ideal_scaling`
  const char* title;  ///< `ideal scaling`
  const char* words;  ///< in a sentence: `compute plus alpha-beta`
};

/// Predictions carry `ideal_scaling`, `alpha_beta`, `overlap` and `bubble_formula` with them:
///
///     ideal_scaling     the step of one rank alone: n ranks take the same time for n times the batches. Of
///                       published rows: from the fitted row with the fewest ranks n0, by n0 / n (total and
///                       epoch times, steps of cases whose batch is global), by n / n0 (throughput), or as it
///                       is (steps of cases with a batch per rank); of nothing that is no training
///     alpha_beta        the same plus every message and collective of rank 0 at alpha + n beta, as if the
///                       network were idle and nothing overlapped (sim/replay/trivial_predictors.hpp); of
///                       copies the sum of all of them, each alone
///     overlap           of collectives beside compute: each starts when its array is ready and the one
///                       before has ended, and lasts as long as with alpha_beta
///     bubble_formula    of pipelines: one rank's part of the step times 1 + (p - 1) / m
///     nearest_measured  the measured time of the nearest other case of the same model: `single` for a
///                       strategy, or where that was not measured the case that differs in the fewest options
///                       and then least in micro-batches; for `single`, the strategy with the smallest world
///                       size, first by name
///     copy              of published rows: the value of the nearest fitted row: the least ratio of the world
///                       sizes, then the same strategy, then the least distance in the list
inline constexpr std::array<TrivialPredictor, 6> kTrivialPredictors{
    {{"copy", "copy fit row", "copying the fit row"},
     {"ideal_scaling", "ideal scaling", "ideal scaling"},
     {"alpha_beta", "alpha-beta", "compute plus alpha-beta"},
     {"overlap", "overlap", "uncontended collectives beside compute"},
     {"bubble_formula", "bubble formula", "the bubble formula"},
     {"nearest_measured", "nearest measured", "copying the nearest measured case"}}};

/// Fills in `nearest_measured` where there is such a case.
void add_nearest_measured(std::vector<Case>& cases);

/// Fills in `copy` and `ideal_scaling` of published rows. A world size of 0: the row has none.
/// \param rows as the set's
void add_published_predictors(const RowSet& set, std::vector<Case>& rows);

/// Adds the baselines `nearest_neighbour` and `constant_throughput` of a table's rows, each from known rows
/// other than itself: those of other folds, or those that parameters were fitted to. Rows without another
/// have none.
void add_table_baselines(const RowSet& set, const std::vector<std::size_t>& rows, SetForecast& forecast);

}  // namespace stepcast
