#pragma once

#include <string>
#include <vector>

#include "sim/explain/critical_path.hpp"
#include "sim/explain/standstills.hpp"
#include "sim/replay/prediction.hpp"

namespace stepcast {

/// The same prediction with more of one resource.
struct Gain {
  std::string resource;  ///< a name of ResourceScale, or `micro-batches`
  std::string option;    ///< of `stepcast predict`: `--scale compute=1.1`
  double step_s = 0.0;
};

struct Explanation {
  Result result;
  Recording recording;
  CriticalPath path;
  std::vector<Standstill> standstills;
  std::vector<Gain> gains;  ///< largest first
};

/// Repeats a prediction, walks the critical path of the step that the Result shows, and predicts once more
/// with `more` times as much of each resource: every tier of links, links on the path, compute, memory
/// bandwidth, host, endpoints, latency, and micro-batches (at least that many). All predictions use the same
/// seed.
/// \pre more > 1
Explanation explain(const PredictionRequest& request, double more);

}  // namespace stepcast
