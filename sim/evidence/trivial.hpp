#pragma once

#include <array>
#include <vector>

#include "sim/evidence/case.hpp"
#include "sim/evidence/row_forecast.hpp"

/// Predictors too simple to need a simulator. Every table of errors stands beside them.
namespace stepcast {

/// A baseline of a published or measured row.
struct RowBaseline {
  const char* name;   ///< `ideal_scaling`
  const char* title;  ///< `ideal scaling`
};

/// Baselines of rows in a file, from its rows to fit, and of rows of a table, from other known rows:
///
///     copy                 in a file: the value of the nearest row to fit: the least ratio of the world
///                          sizes, then the same strategy, then the least distance in the list
///     ideal_scaling        in a file: from the row to fit with the fewest ranks n0, by n0 / n (total and
///                          epoch times, steps of sets whose batch is global), by n / n0 (throughput), or as
///                          it is (steps of sets with a batch per rank); of trainings only
///     alpha_beta           in a file: compute plus communication that is never contended or overlapped, as
///                          predictions contain it
///     nearest_neighbour    in a table: the most similar row, scaled by work
///     constant_throughput  in a table: all work at the median rate of the rows
inline constexpr std::array<RowBaseline, 5> kRowBaselines{{{"copy", "copy fit row"},
                                                           {"ideal_scaling", "ideal scaling"},
                                                           {"alpha_beta", "alpha-beta"},
                                                           {"nearest_neighbour", "nearest neighbour"},
                                                           {"constant_throughput", "constant throughput"}}};

/// Adds `copy` and `ideal_scaling` to rows in a file.
void add_file_baselines(const RowSet& set, SetForecast& forecast);

/// Adds the baselines `nearest_neighbour` and `constant_throughput` of a table's rows, each from known rows
/// other than itself: those of other folds, or those that parameters were fitted to. Rows without another
/// have none.
void add_table_baselines(const RowSet& set, const std::vector<std::size_t>& rows, SetForecast& forecast);

/// Predictions of trainings contain other baselines (Forecast::baseline_step_time_s):
///
///     ideal_scaling     the step of one rank alone: n ranks take the same time for n times the batches
///     alpha_beta        the same plus every message and collective of rank 0 at alpha + n beta, as if the
///                       network were idle and nothing overlapped (sim/replay/trivial_predictors.hpp); of
///                       copies the sum of all of them, each alone
///     overlap           of collectives beside compute: each starts when its array is ready and the one
///                       before has ended, and lasts as long as with alpha_beta
///     bubble_formula    of pipelines: one rank's part of the step times 1 + (p - 1) / m
///
/// This adds `nearest_measured`, the measured time of the nearest other case of the same model: `single` for
/// a strategy, or where that was not measured the case that differs in the fewest options and then least in
/// micro-batches; for `single`, the strategy with the smallest world size, first by name.
void add_nearest_measured(std::vector<Case>& cases);

}  // namespace stepcast
