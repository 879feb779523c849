#pragma once

#include <string>
#include <vector>

#include "records/result.hpp"

/// Where a measured step and its forecast differ.
namespace stepcast {

struct StepDifference {
  std::string name;
  double forecast_s = 0.0;
  double measured_s = 0.0;
  [[nodiscard]] double seconds() const { return measured_s - forecast_s; }
};

/// Mean over the ranks that both files detail; each the largest difference first.
struct StepDifferences {
  double forecast_s = 0.0;  ///< step
  double measured_s = 0.0;
  /// The exclusive parts of the breakdown, and `other steps`, what a file's median step differs from them by: they add up
  /// to the steps.
  std::vector<StepDifference> parts;
  std::vector<StepDifference>
      kinds;  ///< operations by what stands before the first `/` of their name, beside each other or not
  std::vector<StepDifference> layers;       ///< what computes, by layer
  std::vector<StepDifference> collectives;  ///< one by one, from when the rank called
};

/// \throws InputError where no rank is in both, or the second is no forecast of the first: another model, strategy,
/// number of ranks or of batches
StepDifferences step_differences(const Result& measured, const Result& forecast);

}  // namespace stepcast
