#include "sim/kineto/profile_result.hpp"

#include <algorithm>
#include <map>
#include <set>

#include "core/importer.hpp"
#include "core/ranges.hpp"
#include "core/statistics.hpp"
#include "core/table.hpp"
#include "sim/kineto/profile_trace.hpp"

namespace stepcast {
namespace {

/// On a device that waits for its launches an operation lasts as long as these, as in the replay.
double lasting(const RankProfile& rank, const PartTime& time) {
  if (!rank.on_device) return time.host;
  return rank.pace.is_device_step ? time.device : std::max(time.host, time.device);
}

/// Collectives of a step: buckets of DDP in the order of their calls; others are numbered by kind.
void add_collectives(const ProfiledStep& step, int number, std::vector<Span>& spans) {
  auto calls = transformed(step.collectives, [](const ProfiledCollective& call) { return &call; });
  std::ranges::stable_sort(calls, {}, &ProfiledCollective::called);
  std::map<std::string, int> numbers;
  for (const ProfiledCollective* call : calls)
    spans.push_back({.rank = number,
                     .stream = Stream::kComm,
                     .kind = SpanKind::kCommunication,
                     .name = fmt::format("{}/{}{}", call->kind, call->kind == "all_reduce" ? "bucket" : "",
                                         numbers[call->kind]++),
                     .start_s = (call->begin - step.begin) / kSecond,
                     .end_s = (call->end - step.begin) / kSecond,
                     .bytes = call->bytes});
}

/// Operations of one step under the names that a replay gives them.
std::vector<Span> spans_of(const ProfiledRun& run, const RankProfile& rank, const ProfiledStep& step,
                           int number) {
  std::vector<Span> spans;
  double now = 0.0;
  const auto add = [&](const std::string& name, SpanKind kind, double duration) {
    if (duration <= 0.0) return;
    spans.push_back({.rank = number,
                     .kind = kind,
                     .name = name,
                     .start_s = now / kSecond,
                     .end_s = (now + duration) / kSecond});
    now += duration;
  };
  const auto add_part = [&](const char* name, SpanKind kind, StepPart part) {
    add(name, kind, lasting(rank, step.parts[part]));
  };
  const std::vector<ProfiledOperation> sums = segment_sums(run, rank, step);
  add_part("load_input", SpanKind::kInputAndHost, StepPart::kInput);
  add_part("zero_grad", SpanKind::kOptimizerAndCopies, StepPart::kZeroGrad);
  for (std::size_t i = 0; i < sums.size(); ++i)
    add("forward/" + run.segments[i].name, SpanKind::kCompute, lasting(rank, sums[i].forward));
  add_part("loss", SpanKind::kCompute, StepPart::kLoss);
  for (std::size_t i = sums.size(); i-- > 0;)
    add("backward/" + run.segments[i].name, SpanKind::kCompute, lasting(rank, sums[i].backward));
  add_part("optimizer", SpanKind::kOptimizerAndCopies, StepPart::kOptimizer);
  add_collectives(step, number, spans);
  return spans;
}

/// The rest of the step is idle.
Breakdown breakdown_of(const RankProfile& rank, const ProfiledStep& step) {
  const bool device = rank.on_device;
  const auto time = [&](StepPart part) { return lasting(rank, step.parts[part]); };
  Breakdown result;
  result.compute_s = time(StepPart::kForward) + time(StepPart::kLoss) + time(StepPart::kBackward);
  result.exposed_communication_s = device ? step.use.exposed : step.waited;
  result.overlapped_communication_s = device ? step.use.collectives - step.use.exposed : 0.0;
  result.input_and_host_s = time(StepPart::kInput) + (device ? 0.0 : time(StepPart::kRest));
  result.optimizer_and_copies_s =
      time(StepPart::kZeroGrad) + time(StepPart::kOptimizer) + lasting(rank, step.strategy);
  const double whole = rank.pace.is_device_step ? rank.pace.step_us : step.duration();
  result.idle_s = std::max(0.0, whole - result.compute_s - result.exposed_communication_s -
                                    result.input_and_host_s - result.optimizer_and_copies_s);
  for (const auto& [name, part] : breakdown_parts()) result.*part /= kSecond;
  return result;
}

const ProfiledStep& median_step(const RankProfile& rank) {
  const double middle = median(transformed(rank.steps, &ProfiledStep::duration));
  return *std::ranges::min_element(
      rank.steps, {}, [&](const ProfiledStep& step) { return std::abs(step.duration() - middle); });
}

/// The case of the forecast, as far as the profile is of the same.
Configuration configuration_of(const ProfiledRun& run, const Result& forecast) {
  Configuration result = forecast.configuration;
  const RankProfile& any = run.ranks.front();
  std::set<std::string> forecast_names;
  for (const Span& span : forecast.spans) forecast_names.insert(split_micro_batch(span.name).first);
  for (const ProfiledSegment& segment : run.segments)
    if (!forecast_names.contains("forward/" + segment.name))
      result.model = fmt::format("a profile of {} with segment '{}'", counted(run.segments.size(), "segment"),
                                 segment.name);
  result.world_size = std::max(any.metadata.world_size, static_cast<int>(run.ranks.size()));
  if (!any.strategy.empty() && result.world_size > 1) result.strategy = any.strategy;
  result.micro_batches = run.micro_batches;
  if (any.metadata.batch > 0) result.batch = any.metadata.batch * run.micro_batches;
  result.cluster.clear();
  return result;
}

}  // namespace

bool is_profile_of_torch(const std::string& path) {
  const auto* kind = recognised_importer(file_head(path));
  return kind != nullptr && kind->name == "kineto";
}

Result profiled_result(const std::vector<std::string>& paths, const Result& forecast) {
  const ProfiledRun run = read_profiled_run(paths);
  Result result;
  result.origin = Origin::kMeasured;
  result.configuration = configuration_of(run, forecast);
  result.context.gpu.name = run.ranks.front().gpu();
  for (const RankProfile& rank : run.ranks) {
    const int number = std::max(0, rank.metadata.rank);
    std::vector<double>& times = result.step_time_s.emplace_back();
    for (const auto* steps : {&rank.steps, &rank.unlike})
      for (const ProfiledStep& step : *steps)
        times.push_back((rank.pace.is_device_step ? rank.pace.step_us : step.duration()) / kSecond);
    const ProfiledStep& shown = median_step(rank);
    std::ranges::move(spans_of(run, rank, shown, number), std::back_inserter(result.spans));
    result.breakdown.push_back(breakdown_of(rank, shown));
    result.memory.emplace_back().rank = number;
  }
  return result;
}

}  // namespace stepcast
