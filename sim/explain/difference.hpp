#pragma once

#include <string>
#include <vector>

#include "records/result.hpp"

/// Differences between a measured step and its forecast.
namespace stepcast {

struct StepDifference {
  std::string name;
  double forecast_s = 0.0;
  double measured_s = 0.0;
  [[nodiscard]] double seconds() const { return measured_s - forecast_s; }
};

/// Means over the ranks whose operations both files contain. Each list has the largest difference first.
struct StepDifferences {
  double forecast_s = 0.0;  ///< step
  double measured_s = 0.0;
  /// Exclusive parts of the breakdown, and `other steps`: the rest of each file's median step. They add up
  /// to the steps.
  std::vector<StepDifference> parts;
  std::vector<StepDifference> kinds;   ///< by the name's part before the first `/`; kinds may overlap in time
  std::vector<StepDifference> layers;  ///< compute by layer
  std::vector<StepDifference> collectives;  ///< one by one, from the rank's call
  std::string note;  ///< how options or real and replayed compute differ; "": they do not
};

/// \throws InputError if no rank is in both files, or if they are of different cases: the model, the
/// strategy or the number of ranks, samples or micro-batches differ
StepDifferences step_differences(const Result& measured, const Result& forecast);

}  // namespace stepcast
