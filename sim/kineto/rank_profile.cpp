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
#include "sim/kineto/forwards.hpp"
#include "sim/kineto/steps.hpp"

namespace stepcast {
namespace {

constexpr double kLeastPlain = 0.1, kMostPlain = 2.0;  // step without the profiler over the profiled one
constexpr double kLeastLead = 0.05;  // part of the step; less: the host waited for the device between steps
constexpr double kLongestStep = 60.0 * kSecond;  // us; more is doubted
constexpr double kMostLost = 0.01;               // part of all launches; more is reported
constexpr double kAhead = 0.03;                  // part of the step; more: the host runs ahead of the device

/// What a file without training steps contains, and what its profiler left out.
std::string contents_of(const KinetoFile& file, const std::vector<NameKind>& kinds) {
  std::size_t operations = 0, kernels = 0, collectives = 0, nodes = 0, compiled = 0, graphs = 0;
  double begin = 1e300, end = 0.0;
  for (const KinetoEvent& event : file.events) {
    const bool kernel = event.category == KinetoCategory::kKernel;
    begin = std::min(begin, event.begin);
    end = std::max(end, event.end);
    if (event.category == KinetoCategory::kOperation) ++operations;
    if (kernel) ++kernels;
    if (kernel && !collective_kernel(file.name(event)).empty()) ++collectives;
    if (kinds[event.name] == NameKind::kNode) ++nodes;
    if (file.name(event).starts_with("## Call CompiledFxGraph")) ++compiled;
    if (file.name(event).ends_with("GraphLaunch")) ++graphs;
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
    const auto dims = dims_of(file, file.events[operation.event]);
    const bool recurrent = contains_any(operation.name, {"aten::lstm", "aten::gru", "aten::rnn_"}) &&
                           dims.size() > 1 && dims[1].size() == 3;
    if (recurrent && file.metadata.batch == 0)  // inputs may begin with the time, hidden states with layers
      profile.metadata.batch = static_cast<int>(dims[1][1]);
    const std::size_t which = operation.name == "aten::embedding"       ? 1  // of indices
                              : operation.name == "aten::embedding_bag" ? 2  // of bags
                                                                        : 0;
    const bool product = contains_any(operation.name, {"linear", "conv", "mm", "matmul", "embedding"});
    if (profile.input_elements > 0.0 || !product || dims.size() <= which || dims[which].empty()) continue;
    if (profile.metadata.batch == 0) profile.metadata.batch = static_cast<int>(dims[which][0]);
    profile.input_elements = elements_of({dims[which].begin() + 1, dims[which].end()});
  }
  if (step.operations.empty()) return;
  const double begin = file.events[step.operations.front().event].begin;
  const double end = file.events[step.operations.back().event].end;  // optimizers may have their own GEMMs
  // Autocast casts inside the operation: the type is that of the kernel's own call.
  std::map<std::string, double> types;
  for (const KinetoEvent& event : file.events) {
    if (event.begin < begin || event.begin > end) continue;
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

void find_strategy(const KinetoFile& file, RankProfile& profile) {
  bool ddp = false, fsdp = false;
  for (const std::string& name : file.names) {
    ddp = ddp || name.starts_with("DistributedDataParallel.forward") ||
          name.find("reducer::") != std::string::npos;
    fsdp = fsdp || name.starts_with("FSDP::") || name.starts_with("FullyShardedDataParallel");
  }
  profile.strategy = fsdp ? "fsdp" : ddp ? "ddp" : "";
}

/// Of several optimizers the one with the most states. SGD scales its momentum, if it has one.
void find_optimizer(const KinetoFile& file, const UpdateOperations& updated, RankProfile& profile) {
  const PartTime& time = profile.steps.front().parts[StepPart::kOptimizer];
  if (time.host + time.device > 0.0) profile.optimizer.states = 0;
  const bool scales = updated.names.contains("aten::mul_") || updated.names.contains("aten::_foreach_mul_");
  for (const std::string& name : file.names) {
    if (!name.starts_with("Optimizer.step#")) continue;
    const std::string own = name.substr(15, name.find('.', 15) - 15);
    const int states = contains_any(own, {"Adam", "LAMB", "Adadelta"})                       ? 2
                       : contains_any(own, {"RMSprop", "Adagrad", "Muon", "Lion"}) || scales ? 1
                                                                                             : 0;
    if (profile.optimizer.name.empty() || states > profile.optimizer.states)
      profile.optimizer = {own, states};
  }
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

/// Launches whose kernels were cut out of the file, or lost by the profiler; "": a few at most. Kernels
/// without a number belong to one each.
std::string lost_kernels(const KinetoFile& file) {
  std::set<int> ran;
  std::size_t launches = 0, lost = 0, unnumbered = 0;
  for (const KinetoEvent& event : file.events) {
    if (event.on_device()) ran.insert(event.correlation());
    if (event.on_device() && event.correlation() <= 0) ++unnumbered;
  }
  for (const KinetoEvent& event : file.events) {
    if (event.category != KinetoCategory::kRuntime) continue;
    if (file.name(event).find("LaunchKernel") == std::string::npos) continue;
    ++launches;
    if (!ran.contains(event.correlation())) ++lost;
  }
  return ran.empty() || static_cast<double>(lost) <=
                            static_cast<double>(unnumbered) + kMostLost * static_cast<double>(launches)
             ? ""
             : fmt::format("{} of {} have no kernel: times of the device lack theirs", lost,
                           counted(launches, "launch"));
}

/// Reports what a file lacks. \throws InputError for several processes
void check_file(const KinetoFile& file, const std::vector<NameKind>& kinds, std::vector<std::string>& notes) {
  if (!file.cut.empty())
    notes.push_back("ends early or is damaged at " + file.cut + "; events before it are used");
  if (file.untimed > 0)
    notes.push_back(counted(file.untimed, "event") + " without a valid duration: left out");
  if (std::ranges::any_of(file.names, [](const auto& name) {
        return name.find("embedding_sparse_backward") != std::string::npos;
      }))
    notes.emplace_back("gradients of embeddings are sparse; forecasts reduce them as dense ones");
  std::set<int> processes;
  for (const KinetoEvent& event : file.events)
    if (kinds[event.name] == NameKind::kNode) processes.insert(file.tracks[event.track].process);
  if (processes.size() > 1)
    throw InputError("{}: contains steps of {} processes; give the file of each rank", file.path,
                     processes.size());
}

/// Compares the step time with what the file states, and with usual ones.
void check_pace(RankProfile& profile) {
  const double plain = profile.metadata.plain_step_s, part = plain * kSecond / profile.pace.step_us;
  if (plain != 0.0 && !(part > kLeastPlain && part < kMostPlain))
    throw InputError("{}: stepcast.plain_step_s: found {:g}, expected seconds; a profiled step takes {}",
                     profile.path, plain, to_text(Seconds(profile.pace.step_us / kSecond)));
  if (profile.pace.step_us > kLongestStep)
    note(profile.notes, "a step takes {}: is the file's unit of time the microsecond?",
         to_text(Seconds(profile.pace.step_us / kSecond)));
}

}  // namespace

RankProfile read_rank_profile(const std::string& path) {
  const KinetoFile file = read_kineto(path);
  const std::vector<NameKind> kinds = transformed(file.names, name_kind);
  RankProfile profile{.path = path, .metadata = file.metadata};
  check_file(file, kinds, profile.notes);
  EventBegins begins = begins_of(file, kinds);
  auto [track, steps] = steps_of(file, kinds, begins, profile.notes);
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
    note(profile.notes, "kernels ran on {} GPUs of one process; their times are added up", device.gpus);
  const std::string lost = lost_kernels(file);
  if (!lost.empty()) profile.notes.push_back(lost);
  const bool used = device.any || !file.metadata.devices.empty() || file.metadata.backend == "nccl";
  if (!lost.empty() || (!file.cut.empty() && used)) drop_cut_steps(file, device, steps, profile.notes);
  const auto kernels = std::ranges::count(file.events, KinetoCategory::kKernel, &KinetoEvent::category);
  if (!profile.on_device && (kernels > 0 || file.metadata.backend == "nccl"))
    throw InputError("{}: has {}; profile whole steps with activities=[CPU, CUDA]", path,
                     kernels > 0 ? fmt::format("{} kernels, but no launch of one in a step", kernels)
                                 : "no kernels, although its ranks use NCCL");
  add_rests(steps);
  profile.steps = std::move(steps);
  drop_steps(begins, device, profile.steps, profile.notes);
  if (profile.steps.empty())
    throw InputError("{}: has no training step: none of {} has a backward pass{}; found {}", path,
                     counted(device.events.size(), "step"),
                     !begins[NameKind::kOptimizer].empty()
                         ? ", although optimizers run: CUDA graphs and compiled backwards hide its operations"
                     : is_inference ? ", as in inference"
                                    : "",
                     contents_of(file, kinds));
  choose_step(device, profile);
  note_updates(begins, profile.steps.front(), profile.notes);
  if (file.metadata.world_size == 0)  // the file does not state it
    for (const ProfiledCollective& call : profile.steps.front().collectives)
      profile.metadata.world_size = std::max(profile.metadata.world_size, call.ranks);
  check_pace(profile);
  find_strategy(file, profile);
  const UpdateOperations updated = update_operations(file);
  find_optimizer(file, updated, profile);
  describe_input(file, profile.steps.front(), profile);
  for (ProfiledStep& step : profile.steps) {
    drop_input_gradients(file, profile.metadata.batch, updated.shapes, step);
    choose_forwards(step);
  }
  count_buffers(file, profile.steps.front(), profile);
  return profile;
}

}  // namespace stepcast
