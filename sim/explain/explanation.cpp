#include "sim/explain/explanation.hpp"

#include <algorithm>
#include <cmath>
#include <set>

#include "core/error.hpp"
#include "core/ranges.hpp"
#include "core/table.hpp"

namespace stepcast {
namespace {

constexpr double kNamed = 0.01;  ///< of the path; links with less are not scaled separately

/// Resources of the prediction that can be scaled.
std::vector<std::string> resources(const Explanation& known) {
  std::vector<std::string> names{"compute", "memory", "host"};
  const std::vector<int> stage_of_rank = stages(known.recording.schedule);
  const std::set<int> by_stage(stage_of_rank.begin(), stage_of_rank.end());
  for (const int stage : by_stage) names.push_back("stage" + std::to_string(stage));
  if (by_stage.empty() && !known.standstills.empty())
    names.push_back("rank" + std::to_string(most_waited_for(known.standstills).first));
  if (known.recording.schedule.world_size > 1) names.emplace_back("endpoints");
  if (known.recording.links.empty()) return names;
  names.emplace_back("latency");
  const std::set<std::string> tiers(known.recording.tiers.begin(), known.recording.tiers.end());
  for (const auto& [link, seconds] :
       contributions(known.path, [](const PathPart& part) { return part.link; }))
    if (!link.empty() && !tiers.contains(link) && seconds >= kNamed * known.path.step_s)
      names.push_back(link);  // before its tier: the first of equal gains is reported
  append(names, known.recording.tiers);
  return names;
}

/// Step time; none if the prediction fails because it lacks the resource.
std::optional<double> step_of(const PredictionRequest& request) {
  try {
    return predict(request).median_step_time_s();
  } catch (const UsageError&) {
    return std::nullopt;
  } catch (const InputError&) {  // the trace lacks samples for micro-batches of this size
    return std::nullopt;
  }
}

/// The least valid number of micro-batches from `more` times the present number to twice that number.
std::optional<Gain> more_micro_batches(PredictionRequest request, double more) {
  const int now = request.training.micro_batches;
  for (int count = static_cast<int>(std::ceil(more * now)); now > 1 && count <= 2 * now; ++count) {
    request.training.micro_batches = count;
    if (request.costs.batch && *request.costs.batch % count != 0) continue;
    if (const auto step = step_of(request))
      return Gain{"micro-batches", "--micro-batches " + std::to_string(count), *step};
  }
  return std::nullopt;
}

}  // namespace

Explanation explain(const PredictionRequest& request, double more) {
  KnownInputs known;
  PredictionRequest again = request;
  again.known = &known;
  Explanation result;
  again.replay.recording = &result.recording;
  result.result = predict(again);
  result.path = critical_path(result.recording);
  result.standstills = standstills(result.recording);
  again.replay.recording = nullptr;
  again.brief = true;
  for (const std::string& resource : resources(result)) {
    PredictionRequest changed = again;
    // Several resources: network1+pcie.
    for (const std::string& one : split(resource, '+')) changed.scale.push_back({one, more});
    if (const auto step = step_of(changed))
      result.gains.push_back({resource, "--scale " + to_text(changed.scale), *step});
  }
  if (auto gain = more_micro_batches(again, more)) result.gains.push_back(std::move(*gain));
  std::ranges::stable_sort(result.gains, {}, &Gain::step_s);
  return result;
}

}  // namespace stepcast
