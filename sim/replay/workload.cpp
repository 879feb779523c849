#include "sim/replay/workload.hpp"

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "core/error.hpp"
#include "core/ranges.hpp"
#include "core/table.hpp"
#include "sim/replay/device_estimate.hpp"
#include "sim/replay/device_notes.hpp"
#include "sim/replay/device_scaling.hpp"
#include "sim/replay/profile.hpp"
#include "sim/strategies/tensor_parallel.hpp"

namespace stepcast {
namespace {

/// The requested value, or the only one measured.
int choose(const std::optional<int>& requested, const std::set<int>& measured, const std::string& option,
           const std::string& path) {
  if (requested) return *requested;
  if (measured.size() == 1) return *measured.begin();
  throw UsageError("--{} is missing; {} contains {}", option, path, joined(measured));
}

/// Resolves one workload.
struct WorkloadResolver {
  const CostRequest& request;
  const TrainingConfig& training;
  const ResourceScales& scales;
  const bool brief;
  KnownInputs* known;
  Workload result{.batch = request.batch.value_or(1), .threads = request.threads.value_or(1)};

  Workload run() {
    check_sources();
    choose_device();
    const std::string specification = shared_by(request.model, training.mesh);
    if (!request.model.empty())
      result.model =
          in_documents(recomputing(known == nullptr ? load_model(specification) : known->model(specification),
                                   training.recompute.part),
                       request.documents);
    if (!request.trace.empty())
      read_trace();
    else if (result.device != nullptr)
      estimate();
    if (!request.phases.empty()) apply_phases();
    if (result.costs) return std::move(result);
    if (!result.model.has_fixed_times())
      throw UsageError(
          "--trace is missing; '{}' does not declare its times (stepcast measure makes a trace, --device an "
          "estimate)",
          result.model.specification);
    result.model = declared_for(result.model, result.batch, training.micro_batches);
    return std::move(result);
  }

  void check_sources() const {
    const bool traced = !request.trace.empty();
    if (request.model.empty() && !traced)
      throw UsageError("give --trace, or --model with declared times or with --device");
    if (request.device.empty() && !request.trace_device.empty())
      throw UsageError("--trace-device requires --device, which the trace is moved to");
    if (!traced && !request.trace_device.empty())
      throw UsageError("--trace-device requires --trace; without a trace, --device is estimated");
    if (request.precision != Precision{} && !traced && request.device.empty())
      throw UsageError(
          "--precision {} requires --device, or a trace that was measured in it: declared times have none",
          to_text(request.precision));
    if (request.execution != Execution{} && (traced || request.device.empty()))
      throw UsageError("--{}: requires --device without --trace, whose kernels are estimated",
                       to_text(request.execution));
    if (request.documents > 0 && (traced || request.device.empty()))
      throw UsageError("--documents {}: requires --device without --trace, whose kernels are estimated",
                       request.documents);
    if (request.extrapolate && !traced)
      throw UsageError("--extrapolate requires --trace, whose batch sizes it leaves");
    if (traced && !request.phases.empty())
      throw UsageError("--phase-times cannot be combined with --trace, which contains the phases");
    if (!traced && !request.batch && (!request.device.empty() || !request.phases.empty()))
      throw UsageError("--batch is missing; without a trace there is no default");
  }

  void choose_device() {
    if (request.device.empty()) return;
    result.device = &device_model(request.device);
    const auto sets = [&](const char* name) { return request.device.find(name) != std::string::npos; };
    if (!request.trace.empty() &&
        std::ranges::any_of(
            std::array{"efficiency=", "activations=", "rate_spread=", "module_issue=", "operation_issue="},
            sets))
      throw UsageError(
          "--device {}: efficiencies, activations, rate_spread, module_issue and operation_issue apply to "
          "estimates, and cannot be combined with --trace",
          request.device);
    if (!request.phases.empty() || scales.empty()) return;
    result.scaled =
        std::make_shared<const DeviceModel>(scaled_device(scales, *result.device, request.trace.empty()));
    result.device = result.scaled.get();
  }

  [[nodiscard]] int samples() const { return std::max(1, result.batch / training.micro_batches); }

  void estimate() {
    const DeviceModel& device = *result.device;
    result.model = in_precision(std::move(result.model), request.precision, device.gpu, device.transposes());
    result.model.parallel.host = request.host;
    apply(request.execution, result.model);
    const DeviceModel slowest = slowest_of(device, training.world_size);
    const int copy = training.world_size / training.mesh.size("data");
    const bool experts_stay = copy == result.model.parallel.expert_ranks();
    result.costs = estimated_costs(result.model, slowest, samples(), result.threads, experts_stay);
    const double fastest = device.estimate.compute_efficiency, own = slowest.estimate.compute_efficiency;
    if (!brief && own != fastest)
      result.nominal = estimated_costs(result.model, device, samples(), result.threads, experts_stay);
    if (device.gpu) result.threads = 1;  // a device counts as one core
    if (brief) return;
    result.notes["estimate"] = estimate_note(request.precision, device);
    if (const std::string assumed = assumed_note(result.model, device); !assumed.empty())
      result.notes["assumed"] = assumed;
    if (result.nominal && request.phases.empty())
      result.notes["slowest GPU"] = "of " + std::to_string(training.world_size) +
                                    ": GEMMs and attention take " + percent_text(fastest / own - 1.0, 1) +
                                    " longer than at the nominal rate; --device " + device.name +
                                    ":rate_spread=0 turns this off";
    result.notes["known errors"] = known_errors_note(device);
    if (device.estimate.fitted)
      result.notes["fitted"] = fitted_note(*device.estimate.fitted, training.world_size);
  }

  /// Known phases take the place of the estimate's, or share out their time by the flop of the layers.
  void apply_phases() {
    if (result.model.has_fixed_times())
      throw UsageError("--phase-times does not apply to '{}', which declares its times",
                       result.model.specification);
    const bool shares = !result.costs;
    if (shares) result.costs = flop_shares(result.model, samples());
    apply(request.phases, *result.costs, shares);
    if (result.nominal) apply(request.phases, *result.nominal, shares);
    result.notes["phase times"] = to_text(request.phases);
  }

  void read_trace() {
    const std::string& path = request.trace;
    const bool profile = is_profile(path);
    const RecomputedPart part = training.recompute.part;
    if ((part != RecomputedPart::kNothing && part != RecomputedPart::kCoreAttention) ||
        (profile && part != RecomputedPart::kNothing))
      throw UsageError(
          "--recompute {}: {} times whole blocks; parts of them are forecast with --device and without "
          "--trace",
          to_text(part), path);
    if (profile && request.model.empty())
      throw UsageError("--model is missing; {} is a profile, which does not name its model", path);
    if (profile) result.model = in_precision(std::move(result.model), {}, true);
    const Trace& trace =
        result.traced.emplace(profile ? trace_of_profile(path, result.model) : load_trace(path));
    if (!trace.profile.empty())
      result.notes["activations"] = "are not in the profile: memory and fits lack them";
    if (trace.micro_batches > 1 && trace.micro_batches != training.micro_batches)
      result.notes["micro-batches"] =
          fmt::format("{} of the {} that the profile's step has; --micro-batches {} repeats that step",
                      training.micro_batches, trace.micro_batches, trace.micro_batches);
    if (request.model.empty()) result.model = recomputing(model_of(trace, path), part);
    if (!trace.described.empty() && result.model.parameters.empty() && training.world_size > 1)
      throw InputError(
          "{}: the profile has no gradients of parameters or no shapes of them, so that bytes of {} ranks "
          "are not known; profile with backward() and record_shapes=True, or import it with --model",
          path, training.world_size);
    check_mesh(trace);
    const Trace whole = of_file(path, [&] { return of_whole_model(trace, result.model); });
    choose_entry(trace);
    take_precision(trace);
    take_costs(whole);
    result.lineage.push_back(make_ancestor("trace", path));
  }

  void check_mesh(const Trace& trace) const {
    for (const auto& [name, traced] : result.model.parallel.degrees())
      if (const int requested = training.mesh.size(name); requested > 1 && requested != traced)
        throw InputError(
            "{}: is a trace of '{}', not of one of {} ranks of --mesh {}; measure --model {}:{}={} makes one",
            request.trace, trace.model, requested, name, trace.model, name, requested);
  }

  /// Threads and batch that were requested, or the only ones measured.
  void choose_entry(const Trace& trace) {
    std::set<int> batches, threads;
    for (const TraceEntry& entry : trace.entries) threads.insert(entry.threads);
    result.threads = choose(request.threads, threads, "threads", request.trace);
    for (const TraceEntry& entry : trace.entries)
      if (entry.threads == result.threads) batches.insert(entry.batch);
    if (!request.batch) result.batch = training.micro_batches * choose({}, batches, "batch", request.trace);
  }

  void take_precision(const Trace& trace) {
    const Precision precision =
        of_file(request.trace + ": key 'precision'", [&] { return Precision::parse(trace.precision); });
    if (request.precision != Precision{} && request.precision != precision)
      throw UsageError("--precision {}: {} was measured in {}", to_text(request.precision), request.trace,
                       to_text(precision));
    if (trace.has_exchanges) {
      result.model.collectives.clear();
      for (Segment& segment : result.model.segments) segment.collectives.clear();
    }
    const bool launches = !trace.entries.front().loss_issue_s.empty();
    if (launches || precision != Precision{})
      result.model = in_precision(std::move(result.model), precision, launches);
  }

  /// Moved to the device, if one is named. On a GPU the step context does not matter: a wait makes steps
  /// slower by cold caches and branch predictors of a core.
  void take_costs(const Trace& whole) {
    const DeviceModel* traced = result.device == nullptr ? nullptr : device_of(*result.traced);
    const auto at = [&](StepContext context) {
      TraceEntry entry = of_file(
          request.trace, [&] { return whole.at(samples(), result.threads, request.extrapolate, context); });
      return traced == nullptr ? entry : moved(entry, result.model, whole.dtype, *traced, *result.device);
    };
    const TraceEntry alone = at(StepContext::kContinuous);
    if (result.device != nullptr && result.device->gpu) {
      result.costs = traced_costs(result.model, alone);
      result.threads = 1;
      return;
    }
    std::optional<TraceEntry> accumulating;
    if (whole.has(StepContext::kAccumulating)) accumulating = at(StepContext::kAccumulating);
    const TraceEntry* following = accumulating ? &*accumulating : nullptr;
    result.costs = traced_costs(result.model, at(StepContext::kWaiting), following);
    result.continuous = traced_costs(result.model, alone, following);
  }

  /// The device that the trace is moved from. A profile does not name its device: without --trace-device it
  /// is the requested one, unscaled.
  const DeviceModel* device_of(const Trace& trace) {
    const bool profile = trace.device.empty() && request.trace_device.empty();
    const DeviceModel& traced =
        profile ? device_model(request.device) : traced_device(trace, request.trace, request.trace_device);
    result.notes["device"] =
        result.device->name +
        (profile ? ", as profiled" : ", scaled layer by layer from what was measured on " + traced.name);
    return &traced;
  }
};

}  // namespace

void Workload::add_stage_times(Seconds stage, const Schedule& schedule) {
  for (std::optional<PhaseCosts>* each : {&costs, &continuous, &nominal})
    if (*each) stepcast::add_stage_times(stage, schedule, **each);
}

Workload resolve_workload(const CostRequest& request, const TrainingConfig& training,
                          const ResourceScales& scales, bool brief, KnownInputs* known) {
  Workload workload = WorkloadResolver{request, training, scales, brief, known}.run();
  const std::int64_t all = workload.model.parameter_count(), trained = workload.model.trained_count();
  if (!brief && trained < all)
    workload.notes["trained"] = fmt::format("{} of {} parameters on each rank", trained, all);
  return workload;
}

void check_execution(const CostRequest& request, const std::string& strategy, const TrainingConfig& training,
                     const Model& model) {
  const auto check_kernels = [&](const char* option, const std::string& value, bool has, const char* needed) {
    if (!has && contains(request.given, option))
      throw UsageError("--{} {} has no effect: '{}' has no {}", option, value, model.specification, needed);
  };
  const auto is_attention = [](const Kernel& kernel) { return kernel.attention() != nullptr; };
  check_kernels("experts", request.execution.experts, model.has_experts(), "experts");
  check_kernels("attention", request.execution.attention, model.has_kernel(is_attention),
                "fused attention (flash=1)");
  const auto given = [&](const char* name, const char* standard) {
    return value_or(training.options, name, standard) != standard;
  };
  const Recomputation& recomputed = training.recompute;
  if (request.execution.dispatch_overlap == "micro-batches" &&
      (training.micro_batches == 1 || recomputed.blocks > 0 || training.mesh.size("expert") == 1 ||
       contains(recomputed.part, RecomputedPart::kExperts) || given("checkpoint", "never") ||
       given("forward-only", "no") ||
       (strategy == "pipeline" && value_or(training.options, "schedule", "") != "interleaved")))
    throw UsageError(
        "--dispatch-overlap micro-batches needs --mesh expert=N, several --micro-batches, a backward, no "
        "recomputed blocks or moe (--recompute, --checkpoint) and, in a pipeline, --schedule interleaved");
  // megatron/core/transformer/transformer_config.py
  if (request.execution.graph == "layer" && (recomputed.blocks > 0 || given("checkpoint", "never")))
    throw UsageError(
        "--graph layer: takes no recomputed blocks (--recompute {}, --checkpoint); set full or none",
        to_text(recomputed));
  if (request.execution.gathered != Execution().gathered && strategy != "fsdp")
    throw UsageError("--gathered {} has no effect with strategy '{}'; fsdp takes it",
                     request.execution.gathered, strategy);
}

Workload resolve_no_workload(const CostRequest& request, const std::string& strategy) {
  using Asked = std::pair<std::string, bool>;
  for (const auto& [option, given] : {Asked{"model", !request.model.empty()},
                                      {"trace", !request.trace.empty()},
                                      {"device", !request.device.empty()},
                                      {"trace-device", !request.trace_device.empty()},
                                      {"batch", request.batch.has_value()},
                                      {"phase-times", !request.phases.empty()},
                                      {"precision", request.precision != Precision{}},
                                      {"documents", request.documents > 0},
                                      {"extrapolate", request.extrapolate},
                                      {to_text(request.execution), request.execution != Execution{}}})
    if (given)
      throw UsageError("--{} has no effect with strategy '{}', which trains no model", option, strategy);
  Workload result{.threads = request.threads.value_or(1)};
  result.model.name = result.model.specification = "no model";
  return result;
}

void check_threads(const Workload& workload, const CostRequest& request, const Cluster& cluster) {
  const DeviceModel& device = *workload.device;
  if (device.gpu && request.threads && request.trace.empty())
    throw UsageError("--threads has no effect on device '{}', a GPU", device.name);
  if (device.gpu) return;
  int cores = device.multiprocessors;
  for (const Host& host : cluster.hosts) cores = std::min(cores, host.cores);
  if (workload.threads > cores)
    throw UsageError("--threads {}: device '{}' on a host of cluster '{}' has {} cores", workload.threads,
                     device.name, cluster.name, cores);
}

}  // namespace stepcast
