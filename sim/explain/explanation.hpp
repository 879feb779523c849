#pragma once

#include <string>
#include <vector>

#include "sim/explain/critical_path.hpp"
#include "sim/replay/prediction.hpp"

namespace stepcast {

/// The same prediction with one thing changed.
struct Gain {
  std::string resource;  ///< as ResourceScale names it, or `micro-batches`
  std::string option;    ///< of `stepcast predict`, that asks for it: `--scale compute=1.1`
  double step_s = 0.0;
};

struct Explanation {
  Result result;
  Recording recording;
  CriticalPath path;
  std::vector<Standstill> standstills;
  std::vector<Gain> gains;  ///< the largest first
};

/// Predicts again, walks the critical path of the step that the Result shows, and predicts once more for each resource that
/// this prediction has, of which there is `more` times as much: every tier of links, the links that the path names, compute,
/// memory bandwidth, host, endpoints, latency, and so many more micro-batches at least. Draws are those of the same seed.
/// \pre more > 1
Explanation explain(const PredictionRequest& request, double more);

/// \throws InputError where an input of `stated` is another one than `now` has, and names it
void check_same_inputs(const std::string& path, const Result& stated, const Result& now);

}  // namespace stepcast
