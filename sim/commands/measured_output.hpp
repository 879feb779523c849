#pragma once

#include <string>
#include <vector>

#include "sim/evidence/set_summary.hpp"

/// Forecasts of published and measured rows, for people.
namespace stepcast {

struct SetResult {
  RowSet set;
  SetForecast forecast;
};

enum class ShownRows {
  kNone,
  kWorst,    ///< ten, the worst first
  kEvery,    ///< in their order, by their leading quantity
  kDetailed  ///< the same with every quantity and rank
};

/// One line per row: measured and forecast value, range, error, blind forecast and errors of the baselines.
/// Columns without values are left out.
std::string rows_text(const SetResult& result, ShownRows shown);

/// Errors of the rows and of the baselines, and reasons for rows that do not count.
std::string summary_text(const SetResult& result);

/// Rows, summary, parameters, assumptions and open choices.
std::string set_text(const SetResult& result, ShownRows shown);

}  // namespace stepcast
