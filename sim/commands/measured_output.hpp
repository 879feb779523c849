#pragma once

#include <string>
#include <vector>

#include "sim/validation/measured_forecast.hpp"

/// Forecasts of measured rows, for people.
namespace stepcast {

struct SetResult {
  MeasuredSet set;
  SetForecast forecast;
};

/// Summary, parameters and what is left out; with `rows` the ten worst of its rows, with `every` all.
std::string set_text(const SetResult& result, bool rows, bool every);

/// One line per set, and all rows together.
std::string sets_text(const std::vector<SetResult>& results);

}  // namespace stepcast
