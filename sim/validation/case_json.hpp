#pragma once

#include <nlohmann/json.hpp>

#include "sim/validation/row_comparison.hpp"

namespace stepcast {

/// A case as JSON:
///
///     {"id", "source",
///      "rows": [{the row's own keys, "role", "withheld", "standing", "quantity", "measured", "predicted",
///                "relative_error", "relative_errors", "trivial", "trivial_relative_error"}],
///      "assumed", "unidentified", "verdict"}
///
/// `predicted` is null where there is none, and `not_predicted` says why; ranges stand as <key>_low and
/// <key>_high beside <key>. `relative_error`, `measured` and `trivial` are of `quantity`, by which the row is
/// judged; the error is null where nothing was measured. Where `measured` leaves ranks out, as reporting
/// something else, `relative_error_all_ranks` counts them.
/// \param rows of `compare_rows`
nlohmann::json case_json(const PublishedCase& published, const CasePrediction& prediction,
                         const std::vector<RowComparison>& rows);

/// The summary as JSON:
///
///     {"predicted_and_measured": {"rows", "median_absolute_relative_error", "worst_absolute_relative_error",
///                                 "worst_row"},
///      "trivial": {"copy": {the same, "median_of_predictions_over_same_rows"}, ...},
///      "repeated": {...}, "fitted": {...}, "withheld", "not_predicted"}
nlohmann::json summary_json(const ValidationSummary& summary);

}  // namespace stepcast
