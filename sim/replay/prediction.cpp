#include "sim/replay/prediction.hpp"

#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>
#include <utility>

#include "core/error.hpp"
#include "core/file.hpp"
#include "core/table.hpp"
#include "sim/replay/copies.hpp"
#include "sim/replay/device_scaling.hpp"
#include "sim/replay/profile.hpp"
#include "sim/replay/recording.hpp"
#include "sim/replay/trivial_predictors.hpp"
#include "sim/replay/utilisation.hpp"
#include "sim/strategies/tensor_parallel.hpp"

namespace stepcast {
namespace {

/// Everything that was loaded, with a lifetime that covers the replays.
struct Inputs {
  Model model;
  Place place;
  std::optional<Trace> traced;  ///< the whole file
  std::optional<TraceEntry> trace;
  std::optional<TraceEntry> waiting_trace;
  std::optional<TraceEntry> accumulating_trace;  ///< none where it was not measured
  std::optional<TraceEntry> alone;   ///< of one GPU that is no slower than others; none: as `trace`
  std::optional<TraceEntry> issue;   ///< what phases cost a host that runs ahead
  std::vector<Ancestor> lineage;
  std::map<std::string, std::string> notes;
  const DeviceModel* device = nullptr;    ///< that the trace is moved to or estimated for
  std::unique_ptr<DeviceModel> scaled{};  ///< where that is another one than its name says
  int batch = 1;
  int threads = 1;
};

/// The value asked for, or the only one measured.
int choose(const std::optional<int>& asked, const std::set<int>& measured, const std::string& what,
           const std::string& path) {
  if (asked) return *asked;
  if (measured.size() == 1) return *measured.begin();
  std::string values;
  for (const int value : measured) values += (values.empty() ? "" : ", ") + std::to_string(value);
  throw UsageError("--" + what + " is missing; " + path + " holds " + values);
}

/// On a GPU, pace means nothing: what makes a step slower after a wait are a core's caches and branch
/// predictors.
void keep_one_pace(Inputs& inputs) {
  inputs.waiting_trace = inputs.trace;
  inputs.accumulating_trace.reset();
  inputs.threads = 1;  // a device is one, whatever the threads of its host
}

/// Threads are cores of a CPU, which has so many; on a GPU they mean nothing.
void check_threads(const Inputs& inputs, const PredictionRequest& request) {
  const DeviceModel& device = *inputs.device;
  if (device.gpu && request.threads && request.trace.empty())
    throw UsageError("--threads means nothing on device '" + device.name + "', a GPU");
  if (device.gpu) return;
  int cores = device.multiprocessors;
  for (const Host& host : inputs.place.cluster.hosts) cores = std::min(cores, host.cores);
  if (inputs.threads > cores)
    throw UsageError("--threads " + std::to_string(inputs.threads) + ": device '" + device.name +
                     "' on a host of cluster '" + inputs.place.cluster.name + "' has " +
                     std::to_string(cores) + " cores");
}

void move_to_device(Inputs& inputs, const Trace& trace, const PredictionRequest& request) {
  // A profile does not say of which device it is: of this one, without what --scale makes of it.
  const DeviceModel& traced = trace.device.empty()
                                  ? device_model(request.device)
                                  : traced_device(trace, request.trace, request.trace_device);
  for (auto* entry : {&inputs.trace, &inputs.waiting_trace, &inputs.accumulating_trace})
    if (*entry) *entry = moved(**entry, inputs.model, trace.dtype, traced, *inputs.device);
  if (inputs.device->gpu) keep_one_pace(inputs);
  inputs.notes["device"] =
      trace.device.empty()
          ? inputs.device->name + ", as profiled"
          : inputs.device->name + ", scaled layer by layer from what was measured on " + traced.name;
}

/// What `load` makes of `name`, or made of it before.
template <class Thing>
Thing remembered(std::map<std::string, Thing> KnownInputs::*things, const PredictionRequest& request,
                 const std::string& name, Thing (*load)(const std::string&)) {
  if (request.known == nullptr) return load(name);
  std::map<std::string, Thing>& known = request.known->*things;
  const auto found = known.find(name);
  return found != known.end() ? found->second : known.emplace(name, load(name)).first->second;
}

/// A trace made up from what is known of a step: with a device its estimate, whose phases take as long as they are known
/// to; else each phase by the flop of its layers.
void estimate_phases(Inputs& inputs, const PredictionRequest& request) {
  if (!request.batch) throw UsageError("--batch is missing; --phase-times says nothing of it");
  if (inputs.model.has_fixed_times())
    throw UsageError("--phase-times means nothing to '" + inputs.model.specification +
                     "', which declares its times");
  if (!inputs.trace)
    inputs.trace = shares_by_flop(inputs.model, std::max(1, inputs.batch / request.training.micro_batches),
                                  inputs.threads);
  apply(request.phases, *inputs.trace);
  if (inputs.alone) apply(request.phases, *inputs.alone);
  inputs.waiting_trace = inputs.trace;
  inputs.notes["phase times"] = to_text(request.phases);
}

/// Where there is no trace.
void estimate(Inputs& inputs, const PredictionRequest& request) {
  if (!request.batch) throw UsageError("--batch is missing; an estimate without a trace has none of its own");
  inputs.model = in_precision(std::move(inputs.model), request.precision, inputs.device->gpu);
  const int samples = std::max(1, inputs.batch / request.training.micro_batches);
  const DeviceModel slowest = slowest_of(*inputs.device, request.training.world_size);
  StepEstimate estimate = estimated(inputs.model, slowest, samples, inputs.threads);
  if (!request.brief && slowest.compute_efficiency != inputs.device->compute_efficiency)
    inputs.alone = estimated(inputs.model, *inputs.device, samples, inputs.threads).device;
  inputs.trace = std::move(estimate.device);
  inputs.issue = std::move(estimate.host);
  const int threads = inputs.threads;
  keep_one_pace(inputs);
  if (!inputs.device->gpu) inputs.threads = threads;
  if (request.brief) return;
  inputs.notes["estimate"] = estimate_note(request.precision, *inputs.device);
  if (inputs.alone && request.phases.empty())
    inputs.notes["slowest GPU"] =
        "of " + std::to_string(request.training.world_size) + ", its products and attention take " +
        percent_text(inputs.device->compute_efficiency / slowest.compute_efficiency - 1.0, 1) +
        " longer than those of most; rate_spread=0 among the settings of --device has all alike";
  inputs.notes["known errors"] = known_errors_note(*inputs.device);
  if (inputs.device->fitted)
    inputs.notes["fitted"] = fitted_note(*inputs.device->fitted, request.training.world_size);
}

/// The device with what it needs and excludes.
void choose_device(Inputs& inputs, const PredictionRequest& request) {
  if (request.device.empty()) {
    if (!request.trace_device.empty())
      throw UsageError("--trace-device goes with --device, to which the trace is moved");
    return;
  }
  if (request.trace.empty() && !request.trace_device.empty())
    throw UsageError("--trace-device goes with --trace; without one, --device is estimated");
  inputs.device = &device_model(request.device);
  if (!request.trace.empty() && inputs.device->sets_estimate)
    throw UsageError("--device " + request.device +
                     ": efficiencies, activations and rate_spread are those of an estimate, and go "
                     "without --trace");
  if (!by_rooflines(inputs.device, !request.phases.empty()) || request.scale.empty()) return;
  inputs.scaled =
      std::make_unique<DeviceModel>(scaled_device(request.scale, *inputs.device, request.trace.empty()));
  inputs.device = inputs.scaled.get();
}

Precision traced_precision(const Trace& trace, const std::string& path) {
  try {
    return Precision::parse(trace.precision);
  } catch (const InputError& error) {
    throw InputError(path + ": key 'precision': " + error.what());
  }
}

void load_trace_into(Inputs& inputs, const PredictionRequest& request) {
  const bool profile = is_profile(request.trace);
  if (request.training.recomputed_part == RecomputedPart::kOperations ||
      (profile && request.training.recomputed_part != RecomputedPart::kNothing))
    throw UsageError("--recompute " + to_text(request.training.recomputed_part) + ": " + request.trace +
                     " times whole blocks; parts of them are forecast with --device and without --trace");
  if (profile && request.model.empty())
    throw UsageError("--model is missing; " + request.trace + " is a profile, which does not say of which");
  if (profile) inputs.model = in_precision(std::move(inputs.model), {}, true);
  const Trace& trace = inputs.traced.emplace(profile ? trace_of_profile(request.trace, inputs.model)
                                                     : load_trace(request.trace));
  if (request.model.empty())
    inputs.model = recomputing(load_model(trace.model), request.training.recomputed_part);
  for (const auto& [name, asked, traced] :
       {std::tuple{"tensor", request.training.tensor, inputs.model.tensor},
        {"context", request.training.context, inputs.model.context},
        {"expert", request.training.expert, inputs.model.expert}})
    if (asked > 1 && asked != traced)
      throw InputError(request.trace + ": is a trace of '" + trace.model + "', not of one of " +
                       std::to_string(asked) + " ranks of --mesh " + name + "; stepcast measure --" + name +
                       " " + std::to_string(asked) + " makes one");
  const auto of_file = [&](const auto& take) {
    try {
      return take();
    } catch (const InputError& error) {
      throw InputError(request.trace + ": " + error.what());
    }
  };
  const Trace whole = of_file([&] { return of_whole_model(trace, inputs.model); });
  std::set<int> batches;
  std::set<int> threads;
  for (const TraceEntry& entry : trace.entries) threads.insert(entry.threads);
  inputs.threads = choose(request.threads, threads, "threads", request.trace);
  for (const TraceEntry& entry : trace.entries)
    if (entry.threads == inputs.threads) batches.insert(entry.batch);
  const int micro_batches = request.training.micro_batches;
  inputs.batch = request.batch ? *request.batch : micro_batches * choose({}, batches, "batch", request.trace);
  const int samples = std::max(1, inputs.batch / micro_batches);
  const auto at = [&](StepContext pace) {
    return of_file([&] { return whole.at(samples, inputs.threads, request.extrapolate, pace); });
  };
  if (trace.has_exchanges) {
    inputs.model.exchanges.clear();
    for (Segment& segment : inputs.model.segments) segment.exchanges.clear();
  }
  inputs.trace = at(StepContext::kContinuous);
  inputs.waiting_trace = at(StepContext::kWaiting);
  if (trace.has(StepContext::kAccumulating)) inputs.accumulating_trace = at(StepContext::kAccumulating);
  const Precision precision = traced_precision(trace, request.trace);
  if (request.precision != Precision{} && request.precision != precision)
    throw UsageError("--precision " + to_text(request.precision) + ": " + request.trace +
                     " was measured in " + to_text(precision));
  inputs.issue = inputs.trace->issue();
  if (inputs.issue || precision != Precision{})
    inputs.model = in_precision(std::move(inputs.model), precision, inputs.issue.has_value());
  inputs.lineage.push_back(make_ancestor("trace", request.trace));
  if (inputs.device != nullptr) move_to_device(inputs, trace, request);
}

void load_model_into(Inputs& inputs, const PredictionRequest& request) {
  if (request.model.empty() && request.trace.empty())
    throw UsageError("give --trace, or --model with declared times or with --device");
  choose_device(inputs, request);
  if (request.precision != Precision{} && request.trace.empty() && request.device.empty())
    throw UsageError(
        "--precision " + to_text(request.precision) +
        " goes with --device, or with a trace that was measured in it: declared times have none");
  if (!request.model.empty())
    inputs.model = recomputing(
        remembered(&KnownInputs::models, request, shared_by(request.model, request.training), load_model),
        request.training.recomputed_part);
  if (!request.trace.empty() && !request.phases.empty())
    throw UsageError("--phase-times goes without --trace, which knows the phases");
  if (!request.trace.empty()) load_trace_into(inputs, request);
  if (!request.trace.empty()) return;
  if (inputs.device != nullptr) estimate(inputs, request);
  if (!request.phases.empty()) estimate_phases(inputs, request);
  if (inputs.trace) return;
  if (!inputs.model.has_fixed_times())
    throw UsageError("--trace is missing; '" + inputs.model.specification +
                     "' does not declare its times (stepcast measure makes a trace, --device an estimate)");
  inputs.model = declared_for(inputs.model, inputs.batch, request.training.micro_batches);
}

/// The place of a model where nothing is trained.
void load_no_model(Inputs& inputs, const PredictionRequest& request) {
  for (const auto& [option, given] :
       {std::pair{"model", !request.model.empty()}, std::pair{"trace", !request.trace.empty()},
        std::pair{"device", !request.device.empty()}, std::pair{"batch", request.batch.has_value()},
        std::pair{"phase-times", !request.phases.empty()}, std::pair{"gradients", request.gradients_freed},
        std::pair{"precision", request.precision != Precision{}}})
    if (given)
      throw UsageError(std::string("--") + option + " means nothing to strategy '" + request.strategy +
                       "', which trains no model");
  inputs.model.name = inputs.model.specification = "no model";
}

Inputs load_inputs(const PredictionRequest& request, bool trains) {
  Inputs inputs;
  inputs.batch = request.batch.value_or(1);
  inputs.threads = request.threads.value_or(1);
  if (trains)
    load_model_into(inputs, request);
  else
    load_no_model(inputs, request);
  if (request.known != nullptr && !request.calibration.empty())
    inputs.place.calibration =
        remembered(&KnownInputs::calibrations, request, request.calibration, load_calibration);
  if (request.known != nullptr && !request.cluster.empty())
    inputs.place.cluster = remembered(&KnownInputs::clusters, request, request.cluster, load_cluster);
  inputs.place.load(request, {.trace = inputs.traced ? &*inputs.traced : nullptr,
                              .device = inputs.device,
                              .world_size = request.training.world_size,
                              .threads = inputs.threads,
                              .needs_devices = !trains});
  Cluster& cluster = inputs.place.cluster;
  scale_place(request.scale, inputs.place, inputs.scaled != nullptr);
  for (Link& link : cluster.links) {
    if (request.pcie && link.kind == LinkKind::kPcie)
      link.bandwidth = link.scale * link.remaining * *request.pcie;
    if (request.nvlink && link.kind == LinkKind::kNvLink)
      link.bandwidth = link.scale * link.remaining * *request.nvlink;
  }
  if (request.brief) {
    if (inputs.device != nullptr) check_threads(inputs, request);
    inputs.place.choose_backend(request);
    return inputs;
  }
  if (trains) inputs.lineage.push_back(make_ancestor("model", inputs.model.path));
  if (!cluster.path.empty()) inputs.lineage.push_back(make_ancestor("cluster", cluster.path));
  if (inputs.device != nullptr) {
    check_places(cluster, *inputs.device);
    check_threads(inputs, request);
    inputs.lineage.push_back(make_ancestor("devices", device_file().string()));
  }
  if (inputs.place.calibration) inputs.lineage.push_back(make_ancestor("calibration", request.calibration));
  inputs.place.choose_backend(request);
  return inputs;
}

bool copies(const Schedule& schedule) {
  return std::any_of(schedule.programs.begin(), schedule.programs.end(), [](const Program& program) {
    return std::any_of(program.ops.begin(), program.ops.end(),
                       [](const Op& op) { return std::holds_alternative<Copy>(op.action); });
  });
}

/// `pageable memory at 10.0 GB/s, 5.00 us to issue one`
std::string in_words(const CopyCosts& costs) {
  return "pageable memory at " + to_text(costs.pageable) + ", " + to_text(costs.launch) + " to issue one";
}

/// Messages between the stages of a pipeline that a model with declared times says nothing of.
void check_outputs(const Model& model, const Schedule& schedule) {
  if (!model.has_fixed_times()) return;
  for (const Program& program : schedule.programs)
    for (const Op& op : program.ops)
      if (const auto* send = std::get_if<Send>(&op.action); send != nullptr && send->message <= Bytes(0))
        throw InputError(
            model.path + ": key 'output' is missing; " + op.name +
            " crosses a pipeline boundary, and its bytes are what the layer before it puts out, " +
            "as `fixed: {..., output: 1MiB}` per sample or batch");
}

ReplayInput replay_input(Inputs& inputs, const PredictionRequest& request, const Schedule& schedule) {
  constexpr Seconds kNoLimit{1e9};
  ReplayInput input = inputs.place.replay_input(request, schedule.world_size);
  input.schedule = &schedule;
  input.model = &inputs.model;
  const std::optional<TraceEntry>& trace = communicates(schedule) ? inputs.waiting_trace : inputs.trace;
  input.trace = trace ? &*trace : nullptr;
  input.accumulating = inputs.accumulating_trace ? &*inputs.accumulating_trace : nullptr;
  const DeviceModel* device = inputs.device;
  if (device == nullptr && inputs.traced) device = reported_device(inputs.traced->device);
  if (device != nullptr && device->gpu)
    input.device_memory = device->memory_efficiency * device->memory_bandwidth;
  if (inputs.issue) {
    input.issue = &*inputs.issue;
    input.waits_by_phase = request.host_waits_by_phase;
    input.ahead = kNoLimit;  // a trace says how long launches take, not how many there are
    if (inputs.device != nullptr) {
      input.call_issue = inputs.device->collective_issue;
      input.ahead = inputs.device->queued_launches * inputs.device->kernel_launch;
    }
  }
  input.copies = scaled_copies(request.scale, request.copies);
  input.batch = inputs.batch;
  input.threads = inputs.threads;
  input.steps = request.steps;
  input.warmup_steps = request.warmup_steps;
  input.resample = request.resample && !request.compute_waits && inputs.trace.has_value();
  input.compute_waits = request.compute_waits;
  input.seed = request.seed;
  input.record_spans = !request.brief;
  input.shown_steps = request.shown_steps;
  return input;
}

/// Whether steps may go on differently after two that were equal: they are drawn, links remember what they carried, or
/// engines of calibrated endpoints serve who came first of two, where the last digit decides.
bool steps_vary(const ReplayInput& input, const DeviceModel* device) {
  const bool draws = input.resample && input.trace != nullptr && input.trace->steps() > 1;
  const bool engines = input.calibration != nullptr && (device == nullptr || !device->gpu);
  return draws || engines ||
         std::any_of(input.cluster->links.begin(), input.cluster->links.end(),
                     [](const Link& link) { return link.token_bucket > Bytes(0); });
}

/// Replays all steps; or few of them: once one took as long as the one before, on all ranks, so do all that follow.
Result replay_steps(const ReplayInput& input, const DeviceModel* device) {
  constexpr int kSettles = 2;  // steps: what is under way from one to the next, and the next
  constexpr double kEqual = 1e-9;
  if (input.steps + input.warmup_steps <= kSettles + 1 || input.warmup_steps < 1 ||
      steps_vary(input, device) || !input.shown_steps.empty())
    return replay(input);
  ReplayInput few = input;
  few.warmup_steps = kSettles;
  few.steps = 1;
  Result result = replay(few);
  const double before = result.warmup_step_time_s.back();  // of the first rank
  for (std::vector<double>& steps : result.step_time_s) {
    if (std::abs(steps.front() - before) > kEqual * before) return replay(input);
    steps.assign(static_cast<std::size_t>(input.steps), steps.front());
  }
  result.warmup_step_time_s.resize(static_cast<std::size_t>(input.warmup_steps), before);
  result.configuration.steps = input.steps;
  result.configuration.warmup_steps = input.warmup_steps;
  return result;
}

Result replay_replicas(ReplayInput input, const DeviceModel* device, int replicas) {
  Result pooled = replay_steps(input, device);
  for (int replica = 1; replica < replicas; ++replica) {
    ++input.seed;
    input.record_spans = false;
    input.shown_steps.clear();
    const Result more = replay_steps(input, device);
    for (std::size_t rank = 0; rank < pooled.step_time_s.size(); ++rank)
      pooled.step_time_s[rank].insert(pooled.step_time_s[rank].end(), more.step_time_s[rank].begin(),
                                      more.step_time_s[rank].end());
  }
  return pooled;
}

/// What `single` predicts on one rank: the step without any communication.
double single_step_time_s(Inputs& inputs, const PredictionRequest& request, const TrainingConfig& training) {
  TrainingConfig alone = training;
  alone.world_size = 1;
  alone.data = 0;
  alone.options.clear();
  Model part = inputs.model;  // of ranks that share layers: one rank's part
  part.tensor = part.context = part.expert = 1;
  const Schedule schedule = build_schedule("single", part, alone);
  ReplayInput input = replay_input(inputs, request, schedule);
  if (inputs.alone) input.trace = &*inputs.alone;
  input.record_spans = false;
  input.shown_steps.clear();
  return replay_steps(input, inputs.device).median_step_time_s();
}

/// A pipeline's ranks share one batch: each does the part 1 / stages of what one rank alone would do. \param shared ranks
/// share layers and sequences, and `single` is of one rank's part
void add_trivial_predictions(Result& result, const Schedule& schedule, const AlphaBeta& line, double single,
                             int shared) {
  const double stages = static_cast<double>(schedule.world_size) / schedule.data_parallel / shared;
  const double ideal = single / stages;
  result.trivial_step_time_s["ideal_scaling"] = ideal;
  result.trivial_step_time_s["alpha_beta"] = alpha_beta_step_time(schedule, line, Seconds(ideal)).count();
  if (stages > 1.0)
    result.trivial_step_time_s["bubble_formula"] = ideal * (1.0 + (stages - 1.0) / schedule.micro_batches);
}

/// What would fill the memory before it could fail.
void check_size(const PredictionRequest& request) {
  constexpr int kMostRanks = 65'536;
  constexpr double kMostStepTimes = 2e7;
  if (request.training.world_size > kMostRanks)
    throw UsageError("--world-size " + std::to_string(request.training.world_size) + ": must be at most " +
                     std::to_string(kMostRanks));
  const double steps = (1.0 * request.steps + request.warmup_steps) * request.replicas;
  if (steps * std::max(1, request.training.world_size) * request.training.micro_batches > kMostStepTimes)
    throw UsageError("--steps " + std::to_string(request.steps) + ", --warmup " +
                     std::to_string(request.warmup_steps) + " and --replicas " +
                     std::to_string(request.replicas) + " over " +
                     std::to_string(request.training.world_size) +
                     " ranks and their micro-batches: must be at most 20000000 micro-batches in all");
}

/// What the machine gave while the inputs were measured, and what a disturbed one leaves open: costs of samples
/// that were disturbed are too high by `excess` or more, so that the exposed communication may be too long.
void add_machines(const Inputs& inputs, Result& result) {
  if (inputs.traced && inputs.device == nullptr)
    if (const MachineSpeed speed = inputs.traced->machine_speed(); speed.known())
      result.input_speeds["measuring"] = speed;
  const auto disturbed = [](const TraceEntry& entry) { return entry.disturbed; };
  if (inputs.traced && std::any_of(inputs.traced->entries.begin(), inputs.traced->entries.end(), disturbed))
    result.notes["trace"] =
        "did not converge: steps were disturbed while they were measured, and may be too slow";
  if (const Calibration* costs = inputs.place.costs(); costs != nullptr) {
    if (const MachineSpeed speed = costs->machine_speed(); speed.known())
      result.input_speeds["calibrating"] = speed;
    if (costs->sampling.converged()) return;
    double exposed_s = 0.0;
    for (const Breakdown& rank : result.breakdown)
      exposed_s += rank.exposed_communication_s / static_cast<double>(result.breakdown.size());
    const double step_s = result.median_step_time_s();
    result.notes["calibration"] =
        "did not converge: some costs may be " + percent_text(costs->sampling.excess, 0) +
        " too high or more, the step between " +
        to_text(Seconds(step_s - costs->sampling.excess * exposed_s)) + " and " + to_text(Seconds(step_s));
  }
}

/// What people compare language models by.
void add_utilisation(const Inputs& inputs, const Schedule& schedule, int batch, Result& result) {
  const double seconds = result.median_step_time_s();
  if (inputs.model.input_kind != "tokens" || schedule.data_parallel == 0 || seconds <= 0.0) return;
  const double ranks = schedule.world_size;
  const double tokens = 1.0 * schedule.data_parallel * batch *
                        static_cast<double>(inputs.model.input.front()) * inputs.model.context / seconds;
  result.notes["tokens"] =
      short_number(tokens) + " per second, " + short_number(tokens / ranks) + " per rank";
  if (inputs.device == nullptr || !inputs.device->gpu) return;
  const std::string dtype = device_dtype(inputs.model.precision.compute);
  const FlopPerSecond peak = inputs.device->peak.at(dtype);
  const StepFlop flop = step_flop(schedule, inputs.model, batch);
  const auto part = [&](Flop done) { return percent_text(done.count() / (ranks * peak.count() * seconds)); };
  result.notes["mfu"] =
      part(flop.model) + " of " + to_text(peak) + " in " + dtype + "; hfu " + part(flop.hardware);
}

}  // namespace

Result predict(const PredictionRequest& request) {
  check_size(request);
  const bool trains = strategies().find(request.strategy).trains;  // before any file is read
  Inputs inputs = load_inputs(request, trains);
  TrainingConfig training = request.training;
  training.batch = inputs.batch;
  if (inputs.trace) training.segment_times = inputs.trace->median_segment_times();
  constexpr double kMostOperations = 1e7;
  if (1.0 * training.micro_batches * static_cast<double>(inputs.model.segments.size()) > kMostOperations)
    throw UsageError("--micro-batches " + std::to_string(training.micro_batches) + " of " +
                     std::to_string(inputs.model.segments.size()) +
                     " segments are more than 10000000 operations; take fewer");
  const Place& place = inputs.place;
  Schedule schedule = build_schedule(request.strategy, inputs.model, training);
  if (request.gradients_freed) free_gradients(schedule, inputs.model);
  if (request.phases.stage > Seconds(0)) {
    add_stage_times(request.phases.stage, schedule, *inputs.trace);
    if (inputs.alone) add_stage_times(request.phases.stage, schedule, *inputs.alone);
    inputs.waiting_trace = inputs.trace;
  }
  check_outputs(inputs.model, schedule);

  ReplayInput recorded = replay_input(inputs, request, schedule);
  recorded.recording = request.recording;
  recorded.rank_speed = rank_speeds(request.scale, schedule);
  Result result = replay_replicas(recorded, inputs.device, request.replicas);
  if (inputs.device != nullptr && inputs.device->process > Bytes(0))
    for (auto* ranks : {&result.memory, &result.shown.memory})
      for (MemoryUse& rank : *ranks) {
        rank.peak_bytes += inputs.device->process.count();
        rank.at_peak_bytes["process"] += inputs.device->process.count();
        for (double& live : rank.live_bytes) live += inputs.device->process.count();
      }
  if (trains && !request.brief) {
    const double single = schedule.world_size == 1 && request.strategy == "single"
                              ? result.median_step_time_s()
                              : single_step_time_s(inputs, request, training);
    Routes own_routes(place.cluster);
    const AlphaBeta line = message_line(
        place.costs(), recorded.nccl_graphs != nullptr ? recorded.nccl_graphs->routes() : own_routes);
    add_trivial_predictions(result, schedule, line, single, inputs.model.tensor * inputs.model.context);
    if (const auto overlap = overlap_step_time(replay_input(inputs, request, schedule), line))
      result.trivial_step_time_s["overlap"] = overlap->count();
  }
  if (!trains && !request.brief)
    result.trivial_step_time_s["alpha_beta"] =
        Copies::one_by_one(replay_input(inputs, request, schedule)).count();
  if (trains && !request.brief) add_utilisation(inputs, schedule, training.batch, result);
  if (inputs.model.per == "batch" && request.batch)
    result.notes["declared times"] = "of a whole batch, however many samples it has";
  if (copies(schedule)) result.notes["copies"] = in_words(request.copies);
  if (request.pcie) result.notes["pcie"] = to_text(*request.pcie) + " per link";
  if (request.nvlink) result.notes["nvlink"] = to_text(*request.nvlink) + " per GPU and switch";
  if (request.gradients_freed) result.configuration.add_option("gradients", "freed");
  result.configuration.add_option("scale", to_text(request.scale));
  result.configuration.add_option("algorithm", to_text(place.algorithms));
  result.configuration.cluster = place.cluster.specification;
  result.configuration.steps *= request.replicas;
  if (request.compute_waits) result.configuration.compute = "replayed";
  if (trains) result.notes.merge(place.communication_notes(place_ranks(place.cluster, schedule.world_size)));
  if (const int cores = shared_cores(place.costs(), place.cluster); cores > 0)
    result.notes["hosts"] = "share " + std::to_string(cores) + " cores of one machine";
  if (inputs.device != nullptr) {
    result.configuration.device = inputs.device->specification;
    const std::string warning = memory_warning(result, *inputs.device);
    if (!warning.empty()) inputs.notes["memory"] = warning;
  }
  add_machines(inputs, result);
  result.notes.merge(inputs.notes);
  result.lineage = std::move(inputs.lineage);
  return result;
}

}  // namespace stepcast
