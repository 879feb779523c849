#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "sim/evidence/case.hpp"
#include "sim/evidence/row_forecast.hpp"

/// Published rows as cases, each judged by its leading quantity.
namespace stepcast {

/// One per row, in the order of the case, with trivial predictions (sim/evidence/trivial.hpp).
std::vector<Case> compare_rows(const RowSet& set, const SetForecast& forecast);

/// The error against the mean of all ranks, if `measured` leaves some out.
std::optional<double> error_of_all_ranks(const Row& row, const Case& comparison);

/// Sentences on the baselines of one case: on how many rows the forecast is nearer to the measurement, and
/// rows on which it is not, with the reason (`limits`). Errors that differ by less than 0.05 % of the
/// measurement are equal. Fitted rows do not count; withheld rows have a sentence of their own.
std::vector<std::string> verdict(const std::vector<Case>& rows, const std::string& limits);

struct ValidationSummary {
  Accuracy judged;
  Errors repeated;  ///< counted apart
  Errors fitted;    ///< how well the fits reproduce what they were fitted to
  std::size_t withheld = 0;
};
ValidationSummary summarize(const std::vector<Case>& rows);

/// Errors of the judged rows, and the numbers of other rows:
///
///     summary: 5 rows predicted and measured: median absolute error 18.4 %, worst ...; copying the fit row
///     16.8 % of the same 5: nearer than stepcast; ideal scaling 50.7 % of 4 rows, where stepcast has 12.2 %
///
/// Medians that differ by less than 0.05 % are as near.
std::string to_text(const ValidationSummary& summary);

/// A case as JSON:
///
///     {"id", "title", "source",
///      "rows": [{"name", "strategy", "world_size", "role", measured quantities, keys of a Case, "predicted",
///                "relative_errors", "blind_forecast"}],
///      "fitted": [{"name", "value", "unit", "low", "high", "left", "source"}], "chosen", "objective",
///      "accepted", "left_out_error",
///      "assumed", "unidentified", "verdict"}
///
/// Ranges stand as <key>_low and <key>_high beside <key>. Where ranks are left out, as reporting something
/// else, `relative_error_all_ranks` counts them.
/// \param rows of `compare_rows`
nlohmann::json case_json(const RowSet& set, const SetForecast& forecast, const std::vector<Case>& rows);
nlohmann::json summary_json(const ValidationSummary& summary);

}  // namespace stepcast
