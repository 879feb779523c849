#include "sim/explain/explanation.hpp"

#include <algorithm>
#include <cmath>
#include <set>

#include "core/error.hpp"
#include "core/table.hpp"

namespace stepcast {
namespace {

constexpr double kNamed = 0.01;  // of the path: links below are not tried by themselves

/// What the prediction may have more of.
std::vector<std::string> resources(const Explanation& known) {
  std::vector<std::string> names{"compute", "memory", "host"};
  std::set<int> by_stage;
  for (const int stage : stages(known.recording.schedule)) by_stage.insert(stage);
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
      names.push_back(link);  // before its tier, which may gain no more
  names.insert(names.end(), known.recording.tiers.begin(), known.recording.tiers.end());
  return names;
}

/// Of `network1+pcie` both.
ResourceScales scales_of(const std::string& resource, double more) {
  ResourceScales scales;
  for (std::size_t at = 0; at < resource.size();) {
    const std::size_t end = std::min(resource.find('+', at), resource.size());
    scales.push_back({resource.substr(at, end - at), more});
    at = end + 1;
  }
  return scales;
}

/// What it predicts; nothing where it is refused, because there is no such thing.
std::optional<double> step_of(const PredictionRequest& request) {
  try {
    return predict(request).median_step_time_s();
  } catch (const UsageError&) {
    return std::nullopt;
  } catch (const InputError&) {  // a trace without so small micro-batches
    return std::nullopt;
  }
}

/// The least number of micro-batches from `more` times theirs on that the prediction allows, up to twice theirs.
std::optional<Gain> more_micro_batches(PredictionRequest request, double more) {
  const int now = request.training.micro_batches;
  for (int count = static_cast<int>(std::ceil(more * now)); now > 1 && count <= 2 * now; ++count) {
    request.training.micro_batches = count;
    if (request.batch && *request.batch % count != 0) continue;
    if (const auto step = step_of(request))
      return Gain{"micro-batches", "--micro-batches " + std::to_string(count), *step};
  }
  return std::nullopt;
}

}  // namespace

Explanation explain(const PredictionRequest& request, double more) {
  KnownInputs known;
  PredictionRequest asked = request;
  asked.known = &known;
  Explanation result;
  asked.recording = &result.recording;
  result.result = predict(asked);
  result.path = critical_path(result.recording);
  result.standstills = standstills(result.recording);
  asked.recording = nullptr;
  asked.brief = true;
  for (const std::string& resource : resources(result)) {
    PredictionRequest changed = asked;
    const ResourceScales scales = scales_of(resource, more);
    changed.scale.insert(changed.scale.end(), scales.begin(), scales.end());
    if (const auto step = step_of(changed))
      result.gains.push_back({resource, "--scale " + to_text(scales), *step});
  }
  if (auto gain = more_micro_batches(asked, more)) result.gains.push_back(std::move(*gain));
  std::stable_sort(result.gains.begin(), result.gains.end(),
                   [](const Gain& a, const Gain& b) { return a.step_s < b.step_s; });
  return result;
}

void check_same_inputs(const std::string& path, const Result& stated, const Result& now) {
  for (const Ancestor& then : stated.lineage)
    for (const Ancestor& here : now.lineage)
      if (then.role == here.role && then.sha1 != here.sha1)
        throw InputError(path + ": " + then.role + " '" + here.path +
                         "' has changed since; predict it again");
}

}  // namespace stepcast
