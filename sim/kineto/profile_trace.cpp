#include "sim/kineto/profile_trace.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <ranges>
#include <set>
#include <tuple>

#include "core/error.hpp"
#include "core/ranges.hpp"
#include "core/statistics.hpp"
#include "core/table.hpp"
#include "sim/kineto/names.hpp"

namespace stepcast {
namespace {

/// Operations of one micro-batch.
std::vector<ProfiledOperation> operations_of(const ProfiledStep& step, int micro_batch) {
  return filtered(step.operations, [&](const auto& each) { return each.micro_batch == micro_batch; });
}

/// Segments of one micro-batch. Operations may differ from step to step by rounding, parameters not.
std::vector<ProfiledSegment> segments_in(const std::vector<ProfiledOperation>& operations,
                                         const std::optional<Model>& model, const std::string& path) {
  const std::vector<ProfiledSegment> own = segments_of(operations);
  return model ? segments_like(*model, own, path) : own;
}

using Sizes = std::vector<std::vector<double>>;

/// Parameters by segment, which are equal in all steps of a training.
Sizes sizes_of(const ProfiledStep& step) {
  return transformed(segments_of(operations_of(step, 0)), &ProfiledSegment::elements);
}

/// Separates steps whose gradients differ from those of most steps.
void keep_equal_steps(RankProfile& profile) {
  using Kind = std::pair<Sizes, std::size_t>;
  const auto kind_of = [](const ProfiledStep& step) { return Kind(sizes_of(step), step.gradients); };
  std::map<Kind, std::size_t> counts;
  for (const ProfiledStep& step : profile.steps) ++counts[kind_of(step)];
  const Kind most = std::ranges::max_element(counts, {}, [](const auto& each) {
                      return std::pair(each.second, each.first.first.size());
                    })->first;
  const auto unlike = std::ranges::stable_partition(
      profile.steps, [&](const ProfiledStep& step) { return kind_of(step) == most; });
  profile.unlike.assign(unlike.begin(), unlike.end());
  profile.steps.erase(unlike.begin(), unlike.end());
  if (profile.unlike.empty()) return;
  const auto some = static_cast<double>(profile.steps.size()),
             rest = static_cast<double>(profile.unlike.size());
  const double own = sum_of(profile.steps, &ProfiledStep::duration);
  const double others = sum_of(profile.unlike, &ProfiledStep::duration);
  note(profile.notes,
       "{} of {} steps have other gradients: layers and parameters are those of the rest; {} on average, the "
       "rest {}; forecasts take as long as the mean of all",
       rest, some + rest, to_text(Seconds(others / rest / kSecond)), to_text(Seconds(own / some / kSecond)));
  if (profile.pace.is_device_step) return;
  profile.pace.step_us = (own + others) / (some + rest);
  profile.pace.stretch = profile.pace.step_us / median(transformed(profile.steps, &ProfiledStep::duration));
}

using CallKey = std::tuple<std::string, std::string, double, std::string>;

/// Calls of a step by kind, dtype, bytes and group, in order.
std::map<CallKey, std::vector<const ProfiledCollective*>> calls_of(const ProfiledStep& step) {
  std::map<CallKey, std::vector<const ProfiledCollective*>> result;
  for (const ProfiledCollective& call : step.collectives)
    result[{call.kind, call.dtype, call.bytes, call.group}].push_back(&call);
  return result;
}

/// All steps of all ranks. A call that other ranks made, too, takes as long as on the rank that came last.
std::vector<TracedCollective> collectives_of(const std::vector<RankProfile>& ranks) {
  std::map<CallKey, TracedCollective> all;
  const std::size_t steps = ranks.front().steps.size();
  for (std::size_t k = 0; k < steps; ++k) {
    std::vector<std::map<CallKey, std::vector<const ProfiledCollective*>>> calls;
    for (const RankProfile& rank : ranks)
      if (k < rank.steps.size()) calls.push_back(calls_of(rank.steps[k]));
    for (const auto& [key, own] : calls.front()) {
      TracedCollective& traced = all[key];
      for (std::size_t i = 0; i < own.size(); ++i) {
        double duration = own[i]->duration();
        traced.ranks = std::max(traced.ranks, own[i]->ranks);
        for (const auto& other : calls)
          if (const auto found = other.find(key); found != other.end() && found->second.size() == own.size())
            duration = std::min(duration, found->second[i]->duration());
        traced.time_s.push_back(duration / kSecond);
      }
    }
  }
  std::vector<TracedCollective> result;
  for (auto& [key, traced] : all) {
    std::tie(traced.kind, traced.dtype, traced.bytes, std::ignore) = key;
    if (traced.ranks == 0) traced.ranks = ranks.front().metadata.world_size;
    // A call of a transport may be recorded in the step after its own.
    const double mean = static_cast<double>(traced.time_s.size()) / static_cast<double>(steps);
    traced.per_step = mean > 0.5 ? std::round(mean) : mean;
    result.push_back(std::move(traced));
  }
  return result;
}

/// Precision by the dtypes of GEMMs, gradients and reductions.
std::string precision_of(const ProfiledRun& run) {
  const RankProfile& any = run.ranks.front();
  std::string gradients;
  for (const ProfiledOperation& operation : any.steps.front().operations)
    for (const ReadyGradient& ready : operation.gradients) {
      if (gradients.empty()) gradients = precision_dtype(ready.dtype);
      if (gradients.empty() && !ready.dtype.empty())
        throw InputError("{}: has gradients of type {}; forecasts have fp32, bf16 and fp16 only", any.path,
                         ready.dtype);
    }
  const std::string compute = run.compute_dtype;
  if (gradients.empty()) gradients = any.strategy == "fsdp" ? compute : "fp32";
  std::string reduction = gradients;
  double most = 0.0;
  for (const TracedCollective& call : run.collectives)
    if ((call.kind == "all_reduce" || call.kind == "reduce_scatter") && call.bytes * call.per_step > most &&
        !precision_dtype(call.dtype).empty()) {
      most = call.bytes * call.per_step;
      reduction = precision_dtype(call.dtype);
    }
  std::string text = "fp32";
  if (any.strategy == "fsdp" && compute != "fp32")
    text = fmt::format("fp32,compute={0},parameters={0},gradients={1},reduction={2},master=fp32", compute,
                       gradients, most > 0.0 ? reduction : "fp32");
  else if (compute != "fp32" || gradients != "fp32" || reduction != "fp32")
    text = fmt::format("fp32,compute={0},parameters={1},gradients={1},reduction={2},optimizer={1}", compute,
                       gradients, reduction);
  return to_text(Precision::parse(text));
}

/// Without shapes: gradients that became ready since the last reduction share the elements of its bucket.
/// All micro-batches have those of the last one, which reduces even if the others do not (`no_sync`).
void share_buckets(ProfiledStep& step, const char* reduction) {
  std::map<int, std::vector<ReadyGradient*>> gradients;  // by micro-batch
  for (ProfiledOperation& operation : step.operations)
    for (ReadyGradient& ready : operation.gradients) gradients[operation.micro_batch].push_back(&ready);
  if (gradients.empty()) return;
  for (auto& [micro_batch, own] : gradients) std::ranges::stable_sort(own, {}, &ReadyGradient::at);
  const std::vector<ReadyGradient*>& last = gradients.rbegin()->second;
  std::vector<const ProfiledCollective*> calls;
  for (const ProfiledCollective& call : step.collectives)
    if (call.kind == reduction && call.bytes > 0.0) calls.push_back(&call);
  std::ranges::stable_sort(calls, {}, &ProfiledCollective::called);
  auto first = last.begin();
  for (const ProfiledCollective* call : calls) {
    const auto end =
        std::find_if(first, last.end(), [&](const auto* each) { return each->at > call->called; });
    double left = call->bytes / element_bytes(call->dtype);
    for (; first != end; ++first) {
      (*first)->elements = std::floor(left / static_cast<double>(end - first));
      left -= (*first)->elements;
    }
  }
  for (auto& [micro_batch, own] : gradients)
    for (std::size_t i = 0; i < std::min(own.size(), last.size()); ++i) own[i]->elements = last[i]->elements;
}

/// Leaves out steps that another rank lacks, or has with other gradients: collectives of several ranks are
/// compared within a step.
void keep_common_steps(std::vector<RankProfile>& ranks) {
  std::map<std::string, std::size_t> counts, unlike;
  for (const RankProfile& rank : ranks) {
    for (const ProfiledStep& step : rank.steps) ++counts[step.name];
    for (const ProfiledStep& step : rank.unlike) ++unlike[step.name];
  }
  for (RankProfile& rank : ranks) {
    const auto without = [&](std::vector<ProfiledStep>& steps, std::map<std::string, std::size_t>& had) {
      return std::erase_if(steps, [&](const ProfiledStep& step) { return had[step.name] < ranks.size(); });
    };
    const auto dropped = without(rank.steps, counts) + without(rank.unlike, unlike);
    if (rank.steps.empty())
      throw InputError("{}: has no step that all other ranks have, too; import ranks one by one", rank.path);
    if (dropped > 0) rank.notes.push_back(counted(dropped, "step") + " that another rank lacks: left out");
  }
}

void check_ranks(const std::vector<RankProfile>& ranks) {
  std::set<int> seen;
  for (const RankProfile& rank : ranks) {
    if (rank.metadata.world_size != ranks.front().metadata.world_size)
      throw InputError("{}: is of {} ranks, {} of {}; import runs one by one", rank.path,
                       rank.metadata.world_size, ranks.front().path, ranks.front().metadata.world_size);
    if (ranks.size() > 1 && rank.metadata.rank >= 0 && !seen.insert(rank.metadata.rank).second)
      throw InputError("{}: is of rank {}, as another file is; give each rank once", rank.path,
                       rank.metadata.rank);
    if (sizes_of(rank.steps.front()) != sizes_of(ranks.front().steps.front()))
      throw InputError(
          "{}: has other parameters than {}, as stages of a pipeline or ranks with unused layers do; import "
          "one "
          "stage or rank at a time",
          rank.path, ranks.front().path);
  }
  if (const RankProfile& first = ranks.front(); ranks.size() > 1 && first.metadata.rank < 0)
    throw InputError("{}: does not state its rank (distributedInfo); import such files one by one",
                     first.path);
}

/// Ranks that share the optimizer: those that scatter as many elements as the gradients have, or gather or
/// broadcast as many as the parameters. FSDP: of several groups those that move most.
int shards_of(const ProfiledRun& run) {
  const RankProfile& any = run.ranks.front();
  for (const char* kind : {"reduce_scatter", "all_gather", "broadcast"}) {
    std::map<std::pair<int, std::string>, double> moved;  // elements of a step by ranks and group
    for (const ProfiledStep& step : any.steps)
      for (const ProfiledCollective& call : step.collectives)
        if (call.kind == kind)
          moved[{std::max(1, call.ranks > 0 ? call.ranks : any.metadata.world_size), call.group}] +=
              call.bytes / std::max(1.0, element_bytes(call.dtype)) / static_cast<double>(any.steps.size());
    if (any.strategy == "fsdp" && !moved.empty())
      return std::ranges::max_element(moved, {}, [](const auto& each) { return each.second; })->first.first;
    constexpr double kPadding = 0.05;
    for (const auto& [group, elements] : moved)
      if (run.parameters > 0.0 && std::abs(elements / run.parameters - 1.0) < kPadding) return group.first;
  }
  return 1;
}

/// Times of one step, for one rank.
struct StepTimes {
  const ProfiledRun& run;
  const RankProfile& rank;
  const ProfiledStep& step;
  TraceEntry& entry;

  void add() {
    put(step.parts[StepPart::kInput], micro_batch, entry.input_s, entry.input_issue_s);
    put(step.parts[StepPart::kLoss], micro_batch, entry.loss_s, entry.loss_issue_s);
    const std::vector<ProfiledOperation> sums = segment_sums(run, rank, step);
    for (std::size_t i = 0; i < sums.size(); ++i) add_segment(i, sums[i]);
    const double step_us = rank.pace.is_device_step ? rank.pace.step_us : rank.pace.stretch * step.duration();
    entry.step_s.push_back(scale * step_us / kSecond);
    entry.host_s.push_back(device ? std::max(0.0, entry.step_s.back() - worked_s()) : rest_s(sums));
  }

  /// Time of a step on a CPU that neither segments nor other parts have.
  [[nodiscard]] double rest_s(const std::vector<ProfiledOperation>& sums) const {
    double rest = step.parts[StepPart::kRest].host + step.parts[StepPart::kForward].host +
                  step.parts[StepPart::kBackward].host;
    for (const ProfiledOperation& each : sums) rest -= each.forward.host + each.backward.host;
    return host_scale * std::max(0.0, rest) / kSecond;
  }

  /// End of the last phase, as the replay adds them up: a phase of device time d ends at max(end + d, l). l
  /// is the sum of the launch overheads up to it, and end that of the phase before. Exposed communication
  /// follows the backward. Where the host is steps ahead, phases wait for no launch.
  [[nodiscard]] double worked_s() const {
    double launched = 0.0, end = 0.0;
    const auto add = [&](const auto& work, const auto& issue, double times = 1.0) {
      launched += times * issue.back();
      end += times * work.back();
      if (rank.pace.lead_us == 0.0) end = std::max(end, launched);
    };
    const std::vector<SegmentTrace>& all = entry.segments;
    add(entry.input_s, entry.input_issue_s, run.micro_batches);
    for (const SegmentTrace& each : all) add(each.zero_grad_s, each.zero_grad_issue_s);
    for (int i = 0; i < run.micro_batches; ++i) {
      for (const SegmentTrace& each : all) add(each.forward_s, each.forward_issue_s);
      add(entry.loss_s, entry.loss_issue_s);
      for (const SegmentTrace& each : all | std::views::reverse) add(each.backward_s, each.backward_issue_s);
    }
    end += (step.use.exposed + step.strategy.device) / kSecond;
    for (const SegmentTrace& each : all) add(each.optimizer_s, each.optimizer_issue_s, 1.0 / run.shards);
    return std::max(end, launched);
  }

  void put(const PartTime& time, double part, std::vector<double>& samples, std::vector<double>& issues) {
    samples.push_back(part * (device ? rank.pace.stretch * time.device : host_scale * time.host) / kSecond);
    if (device) issues.push_back(part * host_scale * time.host / kSecond);
  }

  void add_segment(std::size_t index, ProfiledOperation sum) {
    SegmentTrace& trace = entry.segments[index];
    if (device) sum.backward.host += sum.strategy;  // calls of collectives and launches of copies
    if (device && index == 0) sum.forward.host += strategy_before();
    put(sum.forward, micro_batch, trace.forward_s, trace.forward_issue_s);
    put(sum.backward, micro_batch, trace.backward_s, trace.backward_issue_s);
    const double part = run.parameters > 0.0 ? run.segments[index].total() / run.parameters
                                             : 1.0 / static_cast<double>(run.segments.size());
    put(step.parts[StepPart::kZeroGrad], part, trace.zero_grad_s, trace.zero_grad_issue_s);
    PartTime update = step.parts[StepPart::kOptimizer];  // of this rank's shard; launches are the same
    (device ? update.device : update.host) *= run.shards;
    put(update, part, trace.optimizer_s, trace.optimizer_issue_s);
  }

  /// Host time for the strategy that is in no backward: broadcasts of buffers, hooks of units.
  [[nodiscard]] double strategy_before() const {
    const double known = sum_of(step.operations, &ProfiledOperation::strategy);
    return std::max(0.0, step.strategy.host + step.waited - known);
  }

  const bool device = rank.on_device;
  const double micro_batch = 1.0 / run.micro_batches;  ///< part of the step
  /// Time of a step without the profiler; 0: unknown. Over that of the median step, and of the host's.
  const double plain_us = rank.metadata.plain_step_s * kSecond;
  const double scale = plain_us > 0.0 ? plain_us / rank.pace.step_us : 1.0;
  const double host_scale = plain_us > 0.0
                                ? plain_us / median(transformed(rank.steps, &ProfiledStep::duration))
                                : rank.pace.stretch;
};

/// By segment: parts of its backward after which its gradients are ready, in that order.
std::vector<std::vector<double>> ready_fractions(const ProfiledRun& run, const ProfiledStep& step,
                                                 const RankProfile& rank) {
  const bool device = rank.on_device;
  const std::vector<ProfiledOperation> operations = operations_of(step, 0);
  const auto of = [device](const PartTime& time) { return device ? time.device : time.host; };
  std::vector<std::vector<double>> result;
  for (const ProfiledSegment& segment : segments_in(operations, run.model, rank.path)) {
    std::vector<double>& own = result.emplace_back();
    double total = 0.0, before = 0.0;
    for (std::size_t i = segment.begin; i < segment.end; ++i) total += of(operations[i].backward);
    for (std::size_t i = segment.end; i-- > segment.begin;) {
      for (const ReadyGradient& ready : operations[i].gradients)
        own.push_back(total > 0.0 ? (before + (device ? ready.device_s : ready.host_s)) / total : 1.0);
      before += of(operations[i].backward);
    }
  }
  return result;
}

/// Median over the steps, mean over the ranks, so that parts add up whatever their ranks do differently.
double median_of(const ProfiledRun& run, const auto& value) {
  const double sum = sum_of(run.ranks, [&](const RankProfile& rank) {
    std::vector<double> all;
    for (const auto* steps : {&rank.steps, &rank.unlike})
      for (const ProfiledStep& step : *steps) all.push_back(value(rank, step) / kSecond);
    return median(all);
  });
  return sum / static_cast<double>(run.ranks.size());
}

}  // namespace

ProfiledRun read_profiled_run(const std::vector<std::string>& paths, const std::string& model) {
  ProfiledRun run;
  if (!model.empty()) run.model = load_model(model);
  for (const std::string& path : paths) {
    run.ranks.push_back(read_rank_profile(path));
    keep_equal_steps(run.ranks.back());
  }
  std::ranges::stable_sort(run.ranks, {}, [](const RankProfile& each) { return each.metadata.rank; });
  check_ranks(run.ranks);
  keep_common_steps(run.ranks);
  const RankProfile& any = run.ranks.front();
  const ProfiledStep& step = any.steps.front();
  run.shared_buckets =
      !any.strategy.empty() && std::ranges::none_of(step.operations, [](const auto& operation) {
        return std::ranges::any_of(operation.gradients,
                                   [](const auto& ready) { return ready.elements > 0.0; });
      });
  if (run.shared_buckets)
    for (RankProfile& rank : run.ranks)
      for (ProfiledStep& each : rank.steps)
        share_buckets(each, any.strategy == "fsdp" ? "reduce_scatter" : "all_reduce");
  run.micro_batches = std::max(1, step.micro_batches);
  run.segments = segments_in(operations_of(step, 0), run.model, any.path);
  for (const ProfiledSegment& segment : run.segments) {
    run.parameters += segment.total();
    run.gradients += segment.elements.size();
  }
  run.collectives = collectives_of(run.ranks);
  run.shards = shards_of(run);
  run.compute_dtype = any.compute_dtype.empty() ? "fp32" : any.compute_dtype;
  run.precision = precision_of(run);
  return run;
}

std::vector<ProfiledOperation> segment_sums(const ProfiledRun& run, const RankProfile& rank,
                                            const ProfiledStep& step) {
  std::vector<ProfiledOperation> sums(run.segments.size());
  for (int micro_batch = 0; micro_batch < run.micro_batches; ++micro_batch) {
    const std::vector<ProfiledOperation> operations = operations_of(step, micro_batch);
    const std::vector<ProfiledSegment> segments = segments_in(operations, run.model, rank.path);
    for (std::size_t index = 0; index < std::min(segments.size(), sums.size()); ++index)
      for (std::size_t i = segments[index].begin; i < segments[index].end; ++i) {
        if (operations[i].is_loss) continue;
        sums[index].forward += operations[i].forward;
        sums[index].backward += operations[i].backward;
        sums[index].strategy += operations[i].strategy;
      }
  }
  return sums;
}

TraceEntry traced_entry(const ProfiledRun& run, int batch) {
  TraceEntry entry;
  entry.batch = batch;
  std::vector<std::vector<std::vector<double>>> fractions;  // by step and segment
  for (const RankProfile& rank : run.ranks)
    for (const ProfiledStep& step : rank.steps) fractions.push_back(ready_fractions(run, step, rank));
  for (const auto [index, segment] : enumerated(run.segments)) {
    entry.segments.emplace_back().name = segment.name;
    for (std::size_t k = 0; k < segment.elements.size(); ++k) {
      std::vector<double> all;
      for (const auto& each : fractions)
        if (index < each.size() && k < each[index].size())
          all.push_back(std::clamp(each[index][k], 0.0, 1.0));
      entry.segments.back().grad_ready_fraction.push_back(all.empty() ? 1.0 : median(all));
    }
  }
  for (const RankProfile& rank : run.ranks)
    for (const ProfiledStep& step : rank.steps) {
      entry.launch.push_back(static_cast<int>(&rank - run.ranks.data()));
      StepTimes{run, rank, step, entry}.add();
    }
  return entry;
}

std::map<std::string, double> step_summary(const ProfiledRun& run) {
  std::map<std::string, double> summary;
  summary["step"] =
      median(transformed(run.ranks, [](const RankProfile& rank) { return rank.pace.step_us / kSecond; }));
  const auto add = [&](const char* name, const auto& value) { summary[name] = median_of(run, value); };
  add("host_step", [](const auto&, const ProfiledStep& step) { return step.duration(); });
  for (const auto& [part, name] : kStepParts)
    for (const bool device : {false, true})
      if (!device || run.ranks.front().on_device)
        summary[std::string(device ? "device_" : "host_") + name] =
            median_of(run, [&, part = part](const auto&, const ProfiledStep& step) {
              return device ? step.parts[part].device : step.parts[part].host;
            });
  add("host_strategy", [](const auto&, const ProfiledStep& step) { return step.strategy.host; });
  add("host_blocked", [](const auto&, const ProfiledStep& step) { return step.blocked; });
  if (!run.ranks.front().on_device) {
    add("exposed", [](const auto&, const ProfiledStep& step) { return step.waited; });
    return summary;
  }
  for (const auto& [name, use] : {std::pair{"device_compute", &DeviceUse::compute},
                                  {"device_copies", &DeviceUse::copies},
                                  {"device_collectives", &DeviceUse::collectives},
                                  {"exposed", &DeviceUse::exposed}})
    add(name, [use = use](const auto&, const ProfiledStep& step) { return step.use.*use; });
  if (std::ranges::all_of(run.ranks, [](const RankProfile& rank) { return rank.pace.lead_us > 0.0; }))
    add("ahead", [](const RankProfile& rank, const auto&) { return rank.pace.lead_us; });
  add("device_idle", [](const RankProfile& rank, const ProfiledStep& step) {
    return std::max(0.0, rank.pace.step_us - step.use.busy);
  });
  return summary;
}

}  // namespace stepcast
