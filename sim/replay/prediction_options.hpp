#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "sim/replay/collective_prediction.hpp"
#include "sim/replay/prediction.hpp"
#include "sim/strategies/options.hpp"

/// Options of a forecast: one table for `predict`, `plan` and studies.
namespace stepcast {

/// Which commands understand an option.
enum class OptionUse : std::uint8_t {
  kTraining,  ///< of the training: `run` has it too, declared with the strategies' own options
  kRun,       ///< `run` has it too, with the same meaning
  kForecast,  ///< of forecasts alone
};

/// An option with its value, by name without dashes.
struct GivenOption {
  const std::string& name;
  const std::string& text;
};

/// One option of `predict`; commands/forecast.yaml has its default and help.
struct PredictionOption {
  std::string name;  ///< without dashes
  OptionUse use = OptionUse::kForecast;
  /// Stores a given value; unset for the options of the training. \throws UsageError, InputError
  std::function<void(PredictionRequest&, const GivenOption&)> set = nullptr;
  bool flag = false;  ///< has no value on the command line
};

/// All options of a forecast but for those of strategies, in the order of the help.
const std::vector<PredictionOption>& prediction_options();

/// Request from the given options, by name without dashes; strategies' own are understood too.
/// \throws UsageError for an unknown option, with the nearest, or a value that is not valid
PredictionRequest prediction_request(const OptionTexts& options);

/// Environment of collectives, and its scales. \throws UsageError for options of anything else, and as above
CollectiveRequest environment_request(const OptionTexts& options);

}  // namespace stepcast
