#pragma once

#include <string>
#include <vector>

#include "sim/evidence/set_summary.hpp"

/// Forecasts of measured rows, for people.
namespace stepcast {

struct SetResult {
  RowSet set;
  SetForecast forecast;
};

/// Summary, parameters and reasons for rows without forecast; with `rows` the ten worst rows, with `every`
/// all.
std::string set_text(const SetResult& result, bool rows, bool every);

}  // namespace stepcast
