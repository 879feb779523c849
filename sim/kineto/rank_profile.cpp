#include "sim/kineto/rank_profile.hpp"

#include <algorithm>
#include <map>
#include <ranges>
#include <set>
#include <utility>

#include "core/error.hpp"
#include "core/ranges.hpp"
#include "core/statistics.hpp"
#include "core/table.hpp"
#include "core/text.hpp"
#include "core/units.hpp"
#include "sim/kineto/device_times.hpp"
#include "sim/kineto/host_sweep.hpp"

namespace stepcast {
namespace {

constexpr double kMostOfMedian = 1.5;                  // longer steps are left out
constexpr double kLeastPlain = 0.1, kMostPlain = 2.0;  // step without the profiler over the profiled one
constexpr double kLeastLead = 0.05;  // part of the step; less: the host waited for the device between steps
constexpr double kAhead = 0.03;      // part of the step; more: the host runs ahead of the device

/// Steps by the thread with the longest of them. Each lasts until the next begins.
std::pair<int, std::vector<ProfiledStep>> annotated_steps(const KinetoFile& file,
                                                          const std::vector<NameKind>& kinds, NameKind kind) {
  std::map<int, std::vector<ProfiledStep>> by_track;
  for (const KinetoEvent& event : file.events)
    if (event.category == KinetoCategory::kAnnotation && kinds[event.name] == kind)
      by_track[event.track].push_back({.name = file.name(event), .begin = event.begin, .end = event.end});
  if (by_track.empty()) return {-1, {}};
  std::set<int> processes;
  for (const auto& [track, steps] : by_track) processes.insert(file.tracks[track].process);
  if (processes.size() > 1)
    throw InputError("{}: contains steps of {} processes; give the file of each rank", file.path,
                     processes.size());
  const auto total = [](const auto& track) { return sum_of(track.second, &ProfiledStep::duration); };
  auto& [track, steps] = *std::ranges::max_element(by_track, {}, total);
  for (std::size_t i = 0; i + 1 < steps.size(); ++i) steps[i].end = steps[i + 1].begin;
  return {track, steps};
}

/// Begins of events by kind. A GradScaler's update counts as the optimizer's, which it may have skipped.
std::map<NameKind, std::vector<double>> begins_of(const KinetoFile& file,
                                                  const std::vector<NameKind>& kinds) {
  std::map<NameKind, std::vector<double>> begins;
  for (const KinetoEvent& event : file.events) {
    const bool scaler = file.name(event) == "aten::_amp_update_scale_";
    begins[scaler ? NameKind::kOptimizer : kinds[event.name]].push_back(event.begin);
  }
  for (auto& [kind, all] : begins) std::ranges::sort(all);
  return begins;
}

bool any_within(const std::vector<double>& begins, double from, double to) {
  const auto next = std::ranges::lower_bound(begins, from);
  return next != begins.end() && *next < to;
}

/// Joins the steps up to each one with an `Optimizer.step#` if others have a backward alone, because step()
/// of the profiler was called after every micro-batch. Joins of fewer steps than others were cut by the
/// window.
void join_micro_batches(std::map<NameKind, std::vector<double>> begins, std::vector<ProfiledStep>& steps,
                        std::vector<std::string>& notes) {
  const auto has = [&](NameKind kind, const ProfiledStep& step) {
    return any_within(begins[kind], step.begin, step.end);
  };
  const auto is_part = [&](const ProfiledStep& step) {
    return has(NameKind::kNode, step) && !has(NameKind::kOptimizer, step);
  };
  if (begins[NameKind::kOptimizer].empty() || std::ranges::none_of(steps, is_part)) return;
  std::vector<std::pair<ProfiledStep, int>> joins;
  bool is_open = false;
  for (const ProfiledStep& step : steps) {
    if (is_open)
      joins.back().first.end = step.end, ++joins.back().second;
    else
      joins.emplace_back(step, 1);
    is_open = is_part(step);
  }
  if (is_open) joins.pop_back();
  const auto alike = [&](int parts) { return std::ranges::count(joins | std::views::values, parts); };
  int most = 0;
  for (const int parts : joins | std::views::values)
    if (std::pair(alike(parts), parts) > std::pair(alike(most), most)) most = parts;
  // If all have it, they may as well be steps, and the Optimizer.step of one was skipped or lost.
  const NameKind sign = begins[NameKind::kZeroGrad].empty() ? NameKind::kCollective : NameKind::kZeroGrad;
  const bool whole = std::ranges::all_of(steps, [&](const ProfiledStep& step) { return has(sign, step); });
  if (most < 2 || (alike(most) < 2 && most < 3 && whole)) {
    notes.push_back("not every ProfilerStep# with a backward has an Optimizer.step");
    return;
  }
  notes.push_back(fmt::format("{} ProfilerStep# were joined to each of {} with an Optimizer.step", most,
                              counted(static_cast<std::size_t>(alike(most)), "step")));
  steps.clear();
  for (const auto& [step, parts] : joins)
    if (parts == most) steps.push_back(step);
}

/// Without `ProfilerStep#`: from the end of one `Optimizer.step#` to the end of the next after a backward; of
/// one alone, from the thread's first event. Updates inside the backward's nodes are no ends.
std::pair<int, std::vector<ProfiledStep>> steps_of(const KinetoFile& file, const std::vector<NameKind>& kinds,
                                                   std::vector<std::string>& notes) {
  auto steps = annotated_steps(file, kinds, NameKind::kStep);
  if (steps.first >= 0) {
    join_micro_batches(begins_of(file, kinds), steps.second, notes);
    return steps;
  }
  const int track = annotated_steps(file, kinds, NameKind::kOptimizer).first;
  const std::vector<double> nodes = begins_of(file, kinds)[NameKind::kNode];
  std::vector<double> ends;
  double first = 1e300, node_end = 0.0;
  for (const KinetoEvent& event : file.events) {
    if (event.track != track) continue;
    first = std::min(first, event.begin);
    if (kinds[event.name] == NameKind::kNode) node_end = std::max(node_end, event.end);
    if (kinds[event.name] != NameKind::kOptimizer || event.end <= node_end) continue;
    if (ends.empty() || any_within(nodes, ends.back(), event.end))
      ends.push_back(event.end);
    else  // one of several optimizers
      ends.back() = std::max(ends.back(), event.end);
  }
  if (ends.empty()) return {-1, {}};
  if (ends.size() == 1) ends.insert(ends.begin(), first);
  std::vector<ProfiledStep> between;
  for (std::size_t i = 0; i + 1 < ends.size(); ++i)
    between.push_back({.name = fmt::format("step {}", i + 1), .begin = ends[i], .end = ends[i + 1]});
  notes.push_back(
      between.front().begin == first
          ? "no ProfilerStep#: one step, from the first event to the end of Optimizer.step"
          : "no ProfilerStep#: a step lasts from the end of one Optimizer.step to the end of the next");
  return {track, between};
}

/// What a file without training steps contains, and what its profiler left out.
std::string contents_of(const KinetoFile& file, const std::vector<NameKind>& kinds) {
  std::size_t operations = 0, kernels = 0, collectives = 0, nodes = 0, compiled = 0, graphs = 0;
  double begin = 1e300, end = 0.0;
  for (const KinetoEvent& event : file.events) {
    begin = std::min(begin, event.begin);
    end = std::max(end, event.end);
    operations += event.category == KinetoCategory::kOperation ? 1 : 0;
    kernels += event.category == KinetoCategory::kKernel ? 1 : 0;
    nodes += kinds[event.name] == NameKind::kNode ? 1 : 0;
    compiled += file.name(event).starts_with("## Call CompiledFxGraph") ? 1 : 0;
    graphs += file.name(event).ends_with("GraphLaunch") ? 1 : 0;
    collectives +=
        event.category == KinetoCategory::kKernel && !collective_kernel(file.name(event)).empty() ? 1 : 0;
  }
  return fmt::format(
      "{} of {}{}: {}, {}, {} of collectives, {} of autograd{}{}{}{}", counted(file.events.size(), "event"),
      to_text(Seconds(std::max(0.0, end - begin) * 1e-6)),
      file.metadata.devices.empty() ? "" : " on " + file.metadata.devices.front(),
      counted(operations, "operation"), counted(kernels, "kernel"), collectives, counted(nodes, "node"),
      compiled > 0 ? fmt::format(", {} of compiled graphs", counted(compiled, "call")) : "",
      graphs > 0 ? fmt::format(", {} of CUDA graphs, which hide operations; profile without them",
                               counted(graphs, "launch"))
                 : "",
      operations == 0 ? "; operations need activities=[ProfilerActivity.CPU, ...]" : "",
      file.cut.empty() ? "" : fmt::format(", up to {}, where the file ends early or is damaged", file.cut));
}

/// Leaves out steps that lack events of the device, as the file was cut: those with 5 % fewer than another or
/// with fewer calls of NCCL that ended, and those whose calls, forward or update have none.
void drop_cut_steps(const KinetoFile& file, const DeviceReport& device, std::vector<ProfiledStep>& steps,
                    std::vector<std::string>& notes) {
  const double host_step = median(transformed(steps, &ProfiledStep::duration));
  const double most = 0.95 * static_cast<double>(std::ranges::max(device.events));
  const auto ended = [](const ProfiledStep& step) {
    return std::ranges::count_if(step.collectives, [](const auto& call) { return call.end > 0.0; });
  };
  const auto most_ended = std::ranges::max(transformed(steps, ended));
  const bool nccl = file.metadata.backend.find("nccl") != std::string::npos;
  std::size_t next = 0;
  const auto dropped = std::erase_if(steps, [&](const ProfiledStep& step) {
    bool lacks = static_cast<double>(device.events[next++]) < most;
    for (const StepPart part : {StepPart::kForward, StepPart::kOptimizer})
      lacks = lacks || step.parts[part].device <= 0.0;
    const auto calls = ended(step);
    return lacks || (nccl && !step.collectives.empty() && (calls == 0 || calls < most_ended));
  });
  if (steps.empty())
    throw InputError(
        "{}: ends early or is damaged at {}, before the kernels of a whole step: times of the device are "
        "unknown; steps of the host take {}",
        file.path, file.cut, to_text(Seconds(host_step / kSecond)));
  if (dropped > 0) notes.push_back(counted(dropped, "step") + " without all events of the device: left out");
}

/// Leaves out steps without a backward, and those that took much longer than the others.
void drop_steps(std::vector<ProfiledStep>& steps, const DeviceReport& device,
                std::vector<std::string>& notes) {
  const auto all =
      transformed(steps | std::views::filter([](const ProfiledStep& step) { return step.nodes > 0; }),
                  &ProfiledStep::duration);
  const double middle = all.empty() ? 0.0 : median(all);
  std::erase_if(steps, [&](const ProfiledStep& step) {
    const bool empty = step.nodes == 0;
    const bool slow =
        !empty && all.size() > 2 && step.duration() > kMostOfMedian * middle && !device.runs_behind;
    if (empty || slow)
      notes.push_back(fmt::format("{} of {} is left out: {}", step.name,
                                  to_text(Seconds(step.duration() * 1e-6)),
                                  empty ? "it has no backward" : "it is much longer than the others"));
    return empty || slow;
  });
}

/// Reports steps with several updates that follow backwards of their own.
void note_updates(std::map<NameKind, std::vector<double>> begins, const ProfiledStep& step,
                  std::vector<std::string>& notes) {
  int updates = 0;
  double last = step.begin;
  for (const double at : begins[NameKind::kOptimizer])
    if (at < step.end && any_within(begins[NameKind::kNode], last, at)) {
      ++updates;
      last = at;
    }
  if (updates > 1 && updates <= step.micro_batches)  // more: of parameters inside the backward
    notes.push_back(
        fmt::format("{} has {} backwards with an Optimizer.step each, which count as one step: call "
                    "step() of the profiler after every training step",
                    step.name, updates));
}

/// Elements that batch norms keep: means, variances and numbers of batches. DDP broadcasts them before the
/// forward of each micro-batch.
void count_buffers(const KinetoFile& file, const ProfiledStep& step, RankProfile& profile) {
  for (const ProfiledCollective& call : step.collectives) {
    if (profile.strategy != "ddp" || call.kind != "broadcast" || step.operations.empty() ||
        call.called > file.events[step.operations.front().event].begin)
      continue;
    const bool counts = element_bytes(call.dtype) == 8.0;
    (counts ? profile.counters : profile.buffers) += static_cast<std::size_t>(call.bytes / (counts ? 8 : 4));
  }
  if (profile.buffers > 0) return;
  for (const ProfiledOperation& operation : step.operations) {
    if (operation.micro_batch > 0 || operation.name.find("batch_norm") == std::string::npos) continue;
    const auto dims = dims_of(file, file.events[operation.event]);
    if (dims.size() < 5 || dims[3].size() != 1 || dims[4].size() != 1) continue;
    profile.buffers += static_cast<std::size_t>(dims[3][0] + dims[4][0]);
    ++profile.counters;
  }
}

/// Samples of a step, elements of one, and the dtype of its first GEMM.
void describe_input(const KinetoFile& file, const ProfiledStep& step, RankProfile& profile) {
  for (const ProfiledOperation& operation : step.operations) {
    const KinetoEvent& event = file.events[operation.event];
    const auto dims = dims_of(file, event);
    const std::size_t which = operation.name == "aten::embedding" ? 1 : 0;
    const bool product = contains_any(operation.name, {"linear", "conv", "mm", "matmul", "embedding"});
    if (!product || dims.size() <= which || dims[which].empty()) continue;
    if (profile.metadata.batch == 0) profile.metadata.batch = static_cast<int>(dims[which][0]);
    profile.input_elements = elements_of({dims[which].begin() + 1, dims[which].end()});
    break;
  }
  // Autocast casts inside the operation: the type is that of the kernel's own call.
  std::map<std::string, double> types;
  for (const KinetoEvent& event : file.events) {
    if (event.begin < step.begin || event.begin > step.end) continue;
    const std::string& name = file.name(event);
    if (name != "aten::mm" && name != "aten::addmm" && name != "aten::convolution" && name != "aten::bmm" &&
        name != "aten::cudnn_convolution" && name != "aten::miopen_convolution")
      continue;
    const std::size_t first = name == "aten::addmm" ? 1 : 0;  // of the matrices
    types[precision_dtype(type_of(file, event, first))] += event.duration();
  }
  types.erase("");
  if (types.empty())  // GEMMs of other libraries, as Transformer Engine's
    for (const ProfiledOperation& operation : step.operations)
      types[precision_dtype(type_of(file, file.events[operation.event]))] += operation.forward.host;
  types.erase("");
  if (!types.empty())
    profile.compute_dtype =
        std::ranges::max_element(types, {}, [](const auto& each) { return each.second; })->first;
}

/// Leaves out gradients of a forward's input, which is no parameter: of one that was received, as by a stage
/// of a pipeline, or whose first extent is the batch. Parameters of the same size stay.
void drop_input_gradients(const KinetoFile& file, int batch, ProfiledStep& step) {
  if (step.operations.empty()) return;
  const double begin = file.events[step.operations.front().event].begin;
  const bool receives = std::ranges::any_of(
      step.collectives, [&](const auto& call) { return call.kind == "recv" && call.called < begin; });
  int micro_batch = -1;
  for (ProfiledOperation& each : step.operations) {
    if (std::exchange(micro_batch, each.micro_batch) == each.micro_batch) continue;
    const auto dims = dims_of(file, file.events[each.event]);
    const auto input = std::ranges::find_if_not(dims, [](const auto& extents) { return extents.empty(); });
    if (input == dims.end() || (!receives && input->front() != batch)) continue;
    const double size = elements_of(*input);
    const auto found = std::ranges::find(each.gradients, size, &ReadyGradient::elements);
    if (found == each.gradients.end() ||
        std::ranges::count(dims, size, elements_of) >
            std::ranges::count(each.gradients, size, &ReadyGradient::elements))
      continue;
    each.gradients.erase(found);
    --step.gradients;
  }
}

void find_strategy(const KinetoFile& file, RankProfile& profile) {
  bool ddp = false, fsdp = false;
  for (const std::string& name : file.names) {
    ddp = ddp || name.starts_with("DistributedDataParallel.forward") ||
          name.find("reducer::") != std::string::npos;
    fsdp = fsdp || name.starts_with("FSDP::") || name.starts_with("FullyShardedDataParallel");
    if (name.starts_with("Optimizer.step#")) profile.optimizer = name.substr(15, name.find('.', 15) - 15);
  }
  profile.strategy = fsdp ? "fsdp" : ddp ? "ddp" : "";
}

/// The host's time that no part accounts for.
void add_rests(std::vector<ProfiledStep>& steps) {
  for (ProfiledStep& step : steps) {
    double known = step.strategy.host + step.waited + step.blocked;
    step.parts[StepPart::kRest].host = 0.0;
    for (const PartTime& part : step.parts) known += part.host;
    step.parts[StepPart::kRest].host = std::max(0.0, step.duration() - known);
  }
}

void choose_step(const DeviceReport& device, RankProfile& profile) {
  profile.pace.step_us = median(transformed(profile.steps, &ProfiledStep::duration));
  if (device.lead > kLeastLead * profile.pace.step_us) profile.pace.lead_us = device.lead;
  if (device.periods.empty() || (profile.pace.lead_us == 0.0 && !device.runs_behind)) return;
  const double period = median(device.periods);
  if (std::abs(period / profile.pace.step_us - 1.0) <= kAhead) return;
  profile.pace.is_device_step = true;
  profile.pace.step_us = period;
}

}  // namespace

void split_forwards(ProfiledStep& step) {
  std::vector<std::pair<double, int>> begun;
  for (int i = 0; i < static_cast<int>(step.operations.size()); ++i)
    if (step.operations[i].node_begin < 1e300) begun.emplace_back(step.operations[i].node_begin, i);
  std::ranges::sort(begun);
  std::vector<int> lasts;
  for (const auto& [time, operation] : begun)
    if (lasts.empty() || operation > lasts.back()) lasts.push_back(operation);
  if (std::ssize(lasts) <= step.micro_batches) return;
  std::vector<std::size_t> gradients(lasts.size());
  std::vector<int> numbers;
  for (const ProfiledOperation& each : step.operations) {
    const auto last = std::ranges::lower_bound(lasts, static_cast<int>(numbers.size()));
    numbers.push_back(static_cast<int>(std::min(last, lasts.end() - 1) - lasts.begin()));
    gradients[numbers.back()] += each.gradients.size();
  }
  if (gradients[0] == 0 || std::ranges::count(gradients, gradients[0]) != std::ssize(lasts)) return;
  for (std::size_t i = 0; i < numbers.size(); ++i) step.operations[i].micro_batch = numbers[i];
  step.micro_batches = static_cast<int>(lasts.size());
}

RankProfile read_rank_profile(const std::string& path) {
  const KinetoFile file = read_kineto(path);
  const std::vector<NameKind> kinds = transformed(file.names, name_kind);
  RankProfile profile{.path = path, .metadata = file.metadata};
  if (!file.cut.empty())
    profile.notes.push_back("ends early or is damaged at " + file.cut + "; events before it are used");
  auto [track, steps] = steps_of(file, kinds, profile.notes);
  const bool is_inference =
      std::ranges::find(kinds, NameKind::kNode) == kinds.end() &&
      std::ranges::count(file.events, KinetoCategory::kOperation, &KinetoEvent::category) > 0;
  if (track < 0)
    throw InputError(
        "{}: has no training step: no ProfilerStep#, and no Optimizer.step# outside of a backward{}; found "
        "{}. Pass schedule=torch.profiler.schedule(...) and call step() after every training step",
        path, is_inference ? ", and no backward pass: it is inference" : "", contents_of(file, kinds));
  const HostLaunches launches = sweep_host(file, kinds, track, steps);
  const DeviceReport device = add_device_times(file, launches, steps);
  profile.on_device = device.any;
  profile.unlinked = device.unlinked;
  profile.device = device.name;
  if (device.gpus > 1)
    profile.notes.push_back(
        fmt::format("kernels ran on {} GPUs of one process; their times are added up", device.gpus));
  if (!file.cut.empty() && (device.any || !file.metadata.devices.empty() || file.metadata.backend == "nccl"))
    drop_cut_steps(file, device, steps, profile.notes);
  const auto kernels = std::ranges::count(file.events, KinetoCategory::kKernel, &KinetoEvent::category);
  if (!profile.on_device && (kernels > 0 || file.metadata.backend == "nccl"))
    throw InputError("{}: has {}; profile with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]",
                     path,
                     kernels > 0 ? fmt::format("{} kernels, but no launch of one in a step", kernels)
                                 : "no kernels, although its ranks use NCCL");
  add_rests(steps);
  profile.steps = std::move(steps);
  drop_steps(profile.steps, device, profile.notes);
  if (profile.steps.empty())
    throw InputError("{}: has no training step: none of {} has a backward pass{}; found {}", path,
                     counted(device.events.size(), "step"),
                     !begins_of(file, kinds)[NameKind::kOptimizer].empty()
                         ? ", although optimizers run: CUDA graphs and compiled backwards hide its operations"
                     : is_inference ? ", as in inference"
                                    : "",
                     contents_of(file, kinds));
  choose_step(device, profile);
  note_updates(begins_of(file, kinds), profile.steps.front(), profile.notes);
  if (file.metadata.world_size == 0)  // the file does not state it
    for (const ProfiledCollective& call : profile.steps.front().collectives)
      profile.metadata.world_size = std::max(profile.metadata.world_size, call.ranks);
  const double plain = file.metadata.plain_step_s, part = plain * kSecond / profile.pace.step_us;
  if (plain != 0.0 && !(part > kLeastPlain && part < kMostPlain))
    throw InputError("{}: stepcast.plain_step_s: found {:g}, expected seconds; a profiled step takes {}",
                     path, plain, to_text(Seconds(profile.pace.step_us / kSecond)));
  find_strategy(file, profile);
  describe_input(file, profile.steps.front(), profile);
  for (ProfiledStep& step : profile.steps) drop_input_gradients(file, profile.metadata.batch, step);
  count_buffers(file, profile.steps.front(), profile);
  return profile;
}

}  // namespace stepcast
