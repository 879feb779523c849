#include "sim/replay/prediction.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <memory>
#include <utility>

#include "core/error.hpp"
#include "core/file.hpp"
#include "core/ranges.hpp"
#include "core/table.hpp"
#include "models/chakra.hpp"
#include "sim/replay/copies.hpp"
#include "sim/replay/device_estimate.hpp"
#include "sim/replay/device_notes.hpp"
#include "sim/replay/device_scaling.hpp"
#include "sim/replay/dispatch.hpp"
#include "sim/replay/memory.hpp"
#include "sim/replay/trivial_predictors.hpp"
#include "sim/replay/utilisation.hpp"
#include "sim/strategies/chakra.hpp"
#include "sim/strategies/tensor_parallel.hpp"
#include "topologies/token_bucket.hpp"

namespace stepcast {
namespace {

/// Refuses a model with declared times that lacks the bytes of messages between stages of a pipeline.
void check_outputs(const Model& model, const Schedule& schedule) {
  if (!model.has_fixed_times()) return;
  for (const Program& program : schedule.programs)
    for (const Op& op : program.ops)
      if (const auto* send = std::get_if<Send>(&op.action); send != nullptr && send->message <= Bytes(0))
        throw InputError(
            "{}: key 'output' is missing; {} crosses a pipeline boundary, and its bytes are what the layer "
            "before it puts out, as `fixed: {{..., output: 1MiB}}` per sample or batch",
            model.path, op.name);
}

/// Compute of a replay of `schedule`.
RankCompute compute_of(const PredictionRequest& request, const Workload& workload, const Schedule& schedule) {
  constexpr Seconds kNoLimit{1e9};
  RankCompute compute;
  compute.phases = workload.costs_of(communicates(schedule));
  compute.batch = workload.batch;
  compute.threads = workload.threads;
  compute.waits = request.replay.compute_waits;
  const DeviceModel* device = workload.device;
  if (device == nullptr && workload.traced) device = reported_device(workload.traced->device);
  if (device != nullptr && device->gpu)
    compute.device_memory = device->estimate.memory_efficiency * device->memory_bandwidth;
  if (compute.phases == nullptr || !compute.phases->asynchronous) return compute;
  const bool ahead = workload.traced && workload.traced->profile.contains("ahead");
  const HostWaits waits = ahead ? HostWaits::kNever : HostWaits::kStep;
  LaunchThread launch{.ahead = kNoLimit, .waits = request.replay.host_waits.value_or(waits)};
  if (workload.device != nullptr) {
    launch.collective = workload.device->launch.collective;
    launch.ahead = workload.device->launch.queued * workload.device->launch.kernel;
  }
  compute.launch = launch;
  return compute;
}

ReplayInput replay_input(const PredictionRequest& request, const Workload& workload,
                         PredictionEnvironment& environment, const Schedule& schedule) {
  ReplayInput input = environment.replay_input(request.environment, schedule.world_size);
  input.schedule = &schedule;
  input.model = &workload.model;
  for (const auto& [resource, factor] : request.scale)
    if (resource == "pageable") input.copies.pageable = factor * input.copies.pageable;
  input.compute = compute_of(request, workload, schedule);
  input.run = request.replay;
  input.run.resample = input.run.resample && !request.replay.compute_waits && workload.costs.has_value();
  input.run.record_spans = !request.brief;
  input.run.recording = nullptr;  // filled by the replay of the request alone
  return input;
}

/// True if steps may differ after two equal ones: they are drawn, links remember what they carried, or
/// engines of calibrated endpoints serve the first of two messages, where the last digit decides.
bool steps_vary(const ReplayInput& input, const DeviceModel* device) {
  const bool engines = input.calibration != nullptr && (device == nullptr || !device->gpu);
  return input.draws_steps() || engines || has_token_buckets(*input.cluster);
}

/// Replays all steps, or a few: once a step took as long as the one before on all ranks, so do all that
/// follow.
Result replay_steps(const ReplayInput& input, const DeviceModel* device) {
  constexpr int kSettles = 2;  // steps: one that starts beside transfers of the one before, and the next
  constexpr double kEqual = 1e-9;
  if (input.run.steps + input.run.warmup_steps <= kSettles + 1 || input.run.warmup_steps < 1 ||
      steps_vary(input, device) || !input.run.shown_steps.empty())
    return replay(input);
  ReplayInput few = input;
  few.run.warmup_steps = kSettles;
  few.run.steps = 1;
  Result result = replay(few);
  const double before = result.warmup_step_time_s.back();  // of the first rank
  for (std::vector<double>& steps : result.step_time_s) {
    if (std::abs(steps.front() - before) > kEqual * before) return replay(input);
    steps.assign(input.run.steps, steps.front());
  }
  result.warmup_step_time_s.resize(input.run.warmup_steps, before);
  result.configuration.steps = input.run.steps;
  return result;
}

Result replay_replicas(ReplayInput input, const DeviceModel* device, int replicas) {
  Result pooled = replay_steps(input, device);
  for (int replica = 1; replica < replicas; ++replica) {
    ++input.run.seed;
    input.run.record_spans = false;
    input.run.shown_steps.clear();
    const Result more = replay_steps(input, device);
    for (std::size_t rank = 0; rank < pooled.step_time_s.size(); ++rank)
      append(pooled.step_time_s[rank], more.step_time_s[rank]);
  }
  return pooled;
}

/// Step time of one rank alone, without communication: of `single`, or of a pipeline's options in one stage.
double single_step_time_s(const PredictionRequest& request, const Workload& workload,
                          PredictionEnvironment& environment, TrainingConfig alone) {
  alone.world_size = 1;
  alone.mesh = {};
  alone.offload = {};
  std::erase_if(alone.options,
                [](const auto& one) { return one.first != "checkpoint" && one.first != "forward-only"; });
  Model part = workload.model;  // of ranks that share layers: one rank's part
  part.parallel.tensor = part.parallel.context = part.parallel.expert = part.parallel.expert_tensor = 1;
  const Schedule schedule = build_schedule(alone.options.empty() ? "single" : "pipeline", part, alone);
  ReplayInput input = replay_input(request, workload, environment, schedule);
  if (workload.nominal) input.compute.phases = &*workload.nominal;
  input.run.record_spans = false;
  input.run.shown_steps.clear();
  return replay_steps(input, workload.device).median_step_time_s();
}

/// Refuses requests that would fill the memory before they could fail.
void check_size(const PredictionRequest& request) {
  constexpr int kMaxRanks = 65'536;
  constexpr double kMaxStepTimes = 2e7;
  if (request.training.world_size > kMaxRanks)
    throw UsageError("--world-size {}: must be at most {}", request.training.world_size, kMaxRanks);
  const double steps = (1.0 * request.replay.steps + request.replay.warmup_steps) * request.replay.replicas;
  if (steps * std::max(1, request.training.world_size) * request.training.micro_batches > kMaxStepTimes)
    throw UsageError(
        "--steps {}, --warmup {} and --replicas {} over {} ranks and their micro-batches: must be at most "
        "20000000 micro-batches in all",
        request.replay.steps, request.replay.warmup_steps, request.replay.replicas,
        request.training.world_size);
}

TrainingConfig training_of(const PredictionRequest& request, const Workload& workload) {
  TrainingConfig training = request.training;
  training.batch = workload.batch;
  if (const PhaseCosts* costs = workload.costs_of(false)) training.segment_times = costs->segment_times();
  return training;
}

/// Machine speeds while the inputs were measured, and notes about samples with interference: their costs are
/// too high by `excess` or more, so that the exposed communication may be too long.
void add_machines(const Workload& workload, const Calibration* calibration, Result& result) {
  if (workload.traced && workload.device == nullptr)
    if (const MachineSpeed speed = workload.traced->machine_speed(); speed.known())
      result.forecast.input_speeds["measuring"] = speed;
  if (workload.traced && std::ranges::any_of(workload.traced->entries, &TraceEntry::with_interference))
    result.notes["trace"] = "did not converge: steps were measured with interference, and may be too slow";
  if (calibration == nullptr) return;
  if (const MachineSpeed speed = calibration->machine_speed(); speed.known())
    result.forecast.input_speeds["calibrating"] = speed;
  if (calibration->sampling.converged()) return;
  const double excess = calibration->sampling.excess;
  double exposed_s = 0.0;
  for (const Breakdown& rank : result.breakdown)
    exposed_s += rank.exposed_communication_s / static_cast<double>(result.breakdown.size());
  const double step_s = result.median_step_time_s();
  result.notes["calibration"] = fmt::format(
      "did not converge: some costs may be {} too high or more, the step between {} and {}",
      percent_text(excess, 0), to_text(Seconds(step_s - excess * exposed_s)), to_text(Seconds(step_s)));
}

/// Throughput in tokens and the utilisation of the devices' peak rate.
void add_utilisation(const Workload& workload, const Schedule& schedule, int batch, Result& result) {
  const double seconds = result.median_step_time_s();
  if (workload.model.input.kind != "tokens" || schedule.data_parallel == 0 || seconds <= 0.0) return;
  const double ranks = schedule.world_size;
  const double tokens = 1.0 * schedule.data_parallel * batch *
                        static_cast<double>(workload.model.input.shape.front()) *
                        workload.model.parallel.context / seconds;
  result.notes["tokens"] =
      short_number(tokens) + " per second, " + short_number(tokens / ranks) + " per rank";
  if (workload.device == nullptr || !workload.device->gpu) return;
  const std::string dtype = device_dtype(workload.model.precision.compute);
  const FlopPerSecond peak = workload.device->peak.at(dtype);
  const StepFlop flop = step_flop(schedule, workload.model, batch);
  const auto part = [&](Flop done) { return percent_text(done.count() / (ranks * peak.count() * seconds)); };
  const bool fused = value_or(workload.model.settings, "flash", 1) != 0;
  result.notes["flop"] = fmt::format("{} TFLOP/s per GPU: causal attention {}, no recomputation",
                                     short_number(flop.model.count() / (ranks * seconds) * 1e-12),
                                     fused ? "half" : "in full, as flash=0 computes it");
  const std::string& recipe = workload.model.precision.products;
  result.notes["mfu"] =
      fmt::format("{} of {} in {}{}; hfu, with recomputed work, {}", part(flop.model), to_text(peak), dtype,
                  recipe == "none" ? "" : ", not " + recipe, part(flop.hardware));
}

/// Adds the bytes that a process holds besides to every rank's memory.
void add_process_memory(Bytes process, Result& result) {
  for (auto* ranks : {&result.memory, &result.shown.memory})
    for (MemoryUse& rank : *ranks) {
      rank.peak_bytes += process.count();
      rank.at_peak_bytes["process"] += process.count();
      rank.terms["workspaces of GEMMs, or process= of the device"] += process.count();
      for (double& live : rank.live_bytes) live += process.count();
    }
}

/// Step times of baselines that need no simulator. A pipeline's ranks share one batch: each does 1 / stages
/// of the work of one rank alone.
void add_baselines(const PredictionRequest& request, const Workload& workload,
                   PredictionEnvironment& environment, const Schedule& schedule, Result& result) {
  const ReplayInput input = replay_input(request, workload, environment, schedule);
  std::map<std::string, double>& baselines = result.forecast.baseline_step_time_s;
  if (!strategies().find(request.strategy).trains) {
    baselines["alpha_beta"] = Copies::one_by_one(input).count();
    return;
  }
  if (schedule.data_parallel == 0) return;  // a trace of Chakra has no batches and no step of one rank
  const TrainingConfig training = training_of(request, workload);
  const double single = schedule.world_size == 1 && request.strategy == "single"
                            ? result.median_step_time_s()
                            : single_step_time_s(request, workload, environment, training);
  Routes own_routes(environment.cluster);
  const AlphaBeta line = message_line(
      environment.costs(), input.nccl_graphs != nullptr ? input.nccl_graphs->routes() : own_routes);
  const int shared = workload.model.parallel.tensor * workload.model.parallel.context;  // of its part
  const double stages = static_cast<double>(schedule.world_size) / schedule.data_parallel / shared;
  const double ideal = single / stages;
  baselines["ideal_scaling"] = ideal;
  baselines["alpha_beta"] = alpha_beta_step_time(schedule, line, Seconds(ideal)).count();
  if (stages > 1.0) baselines["bubble_formula"] = ideal * (1.0 + (stages - 1.0) / schedule.micro_batches);
  if (const auto overlap = overlap_step_time(input, line)) baselines["overlap"] = overlap->count();
  add_utilisation(workload, schedule, training.batch, result);
}

/// Bytes between the rank that moves most and its host, and what the host holds.
void add_offload(const Offload& offload, const EnvironmentRequest& asked, const Cluster& cluster,
                 const Schedule& schedule, Result& result) {
  Bytes most, sent, held;
  for (const Program& program : schedule.programs) {
    Bytes out, back;
    for (const Op& op : program.ops)
      if (const auto* copy = std::get_if<Copy>(&op.action); copy != nullptr && copy->from != copy->to)
        (copy->to.is_host() ? out : back) += copy->message;
    held = std::max(held, program.host_memory);
    if (out + back > most) most = out + back, sent = out;
  }
  result.notes["offload"] = fmt::format("{} to the host and {} back per step; {} of its memory per rank",
                                        to_text(sent), to_text(most - sent), to_text(held));
  std::map<const Host*, Bytes> of_host;
  const std::vector<int> places = place_ranks(cluster, schedule.world_size);
  for (int rank = 0; rank < schedule.world_size; ++rank)
    of_host[&cluster.host_of(places[rank])] += schedule.program(rank).host_memory;
  const auto full = std::ranges::find_if(of_host, [](const auto& one) {
    return one.first->memory > Bytes(0) && one.second > one.first->memory;
  });
  if (full != of_host.end())
    result.notes["offload"] += fmt::format(", together {} of a host with {}: the step does not fit",
                                           to_text(full->second), to_text(full->first->memory));
  std::string& assumed = result.notes["assumed"];
  assumed += (assumed.empty() ? "" : "; ") +
             std::string("copies run at the rate of links in both directions at once");
  if (offload.has_activations()) assumed += ", two blocks ahead";
  if (offload.optimizer > 0.0)
    assumed += "; a socket updates parameters at " + to_text(asked.copies.host_memory) + " of its memory";
}

/// Configuration and notes of the request and its environment.
void describe(const PredictionRequest& request, const Workload& workload,
              const PredictionEnvironment& environment, const Schedule& schedule, Result& result) {
  const EnvironmentRequest& asked = request.environment;
  if (workload.model.input.declared_per == "batch" && request.costs.batch)
    result.notes["declared times"] = "of a whole batch, however many samples it has";
  if (request.training.offload != Offload{})
    add_offload(request.training.offload, asked, environment.cluster, schedule, result);
  else if (has_action<Copy>(schedule))
    result.notes["copies"] = fmt::format("pageable memory at {}, {} to issue one",
                                         to_text(asked.copies.pageable), to_text(asked.copies.launch));
  const auto gpus = std::ssize(environment.cluster.hosts.front().devices);
  if (workload.traced && workload.device == nullptr)
    if (const std::string note = place_note(environment.cluster, *workload.traced); !note.empty())
      result.notes["compute"] = note;
  if (const std::string note = domain_note(workload.model, static_cast<int>(gpus)); !note.empty())
    result.notes["dispatch"] = note;
  if (const std::string note = options_without_effect(
          request.costs.given, request.training, request.costs.execution, environment.algorithms, schedule);
      !note.empty())
    result.notes["no effect"] = note;
  if (asked.pcie) result.notes["pcie"] = to_text(*asked.pcie) + " per link";
  if (asked.nvlink) result.notes["nvlink"] = to_text(*asked.nvlink) + " per GPU and switch";
  if (request.gradients_freed) result.configuration.add_option("gradients", "freed");
  result.configuration.add_option("scale", to_text(request.scale));
  result.configuration.add_option("algorithm", to_text(environment.algorithms));
  result.configuration.cluster = environment.cluster.specification;
  result.configuration.steps *= request.replay.replicas;
  if (request.replay.compute_waits) result.configuration.compute = "replayed";
  if (strategies().find(request.strategy).trains)
    result.notes.merge(
        environment.communication_notes(place_ranks(environment.cluster, schedule.world_size)));
  if (const int cores = shared_cores(environment.costs(), environment.cluster); cores > 0)
    result.notes["hosts"] = fmt::format("share {} cores of one machine", cores);
  if (workload.device != nullptr) {
    result.configuration.device = workload.device->specification;
    const std::string warning = memory_warning(result, *workload.device);
    if (!warning.empty()) result.notes["memory"] = warning;
  }
  add_machines(workload, environment.costs(), result);
}

/// Input files of a forecast.
void add_lineage(const PredictionRequest& request, const Cluster& cluster, bool trains, Workload& workload) {
  if (trains) workload.lineage.push_back(make_ancestor("model", workload.model.path));
  if (!cluster.path.empty()) workload.lineage.push_back(make_ancestor("cluster", cluster.path));
  if (workload.device != nullptr)
    workload.lineage.push_back(make_ancestor("devices", device_file().string()));
  if (const std::string& path = request.environment.calibration; !path.empty())
    workload.lineage.push_back(make_ancestor("calibration", path));
}

/// Plan of a request as text: everything that its Schedule depends on. Empty if it depends on times, too.
std::string plan_key(const PredictionRequest& request, const DeviceModel* device) {
  const TrainingConfig& training = request.training;
  if (!request.costs.trace.empty() || !request.costs.phases.empty() || !request.costs.batch ||
      value_or(training.options, "split", "") == "balanced")
    return "";
  std::string key = request.strategy + "|" + shared_by(request.costs.model, training.mesh) + "|" +
                    to_text(request.costs.precision) + "|" + to_text(request.costs.execution) + "|" +
                    to_text(training.recompute) + "|" + to_text(training.offload);
  for (const int value :
       {device != nullptr && device->gpu ? 1 : 0, device != nullptr && device->transposes() ? 1 : 0,
        request.gradients_freed ? 1 : 0, training.world_size, request.costs.documents, *request.costs.batch,
        training.micro_batches})
    key += "|" + std::to_string(value);
  key += "|" + training.mesh.text();
  for (const auto& [name, value] : training.options) key += "|" + name + "=" + value;
  return key;
}

/// The Schedule of a request: built once per plan if `request.known` is set.
std::shared_ptr<const Schedule> planned_schedule(const PredictionRequest& request, const Workload& workload) {
  const auto made = [&] { return std::make_shared<const Schedule>(resolve_schedule(request, workload)); };
  const std::string key = request.known == nullptr ? "" : plan_key(request, workload.device);
  return key.empty() ? made() : cached(request.known->schedules, key, made);
}

}  // namespace

Schedule resolve_schedule(const PredictionRequest& request, const Workload& workload) {
  constexpr double kMaxOperations = 1e7;
  const TrainingConfig training = training_of(request, workload);
  const std::size_t segments = workload.model.segments.size();
  if (1.0 * training.micro_batches * static_cast<double>(segments) > kMaxOperations)
    throw UsageError("--micro-batches {} of {} segments are more than 10000000 operations; take fewer",
                     training.micro_batches, segments);
  if (is_chakra(workload.model.path)) return chakra_schedule(workload.model, training.world_size);
  Schedule schedule = build_schedule(request.strategy, workload.model, training);
  if (request.gradients_freed) free_gradients(schedule, workload.model);
  check_outputs(workload.model, schedule);
  return schedule;
}

Result replay_schedule(const PredictionRequest& request, Workload workload,
                       PredictionEnvironment& environment, const Schedule& schedule) {
  if (request.costs.phases.stage > Seconds(0)) workload.add_stage_times(request.costs.phases.stage, schedule);
  ReplayInput recorded = replay_input(request, workload, environment, schedule);
  recorded.run.recording = request.replay.recording;
  recorded.compute.rank_speed = rank_speeds(request.scale, schedule);
  Result result = replay_replicas(recorded, workload.device, request.replay.replicas);
  const Bytes process = workload.device != nullptr
                            ? process_bytes(*workload.device, workload.model)
                            : Bytes(workload.traced ? workload.traced->workspace_bytes : 0.0);
  if (process > Bytes(0)) add_process_memory(process, result);
  if (workload.device != nullptr && workload.device->gpu)
    add_process_totals(schedule, workload.model, 1.0 * workload.batch / schedule.micro_batches,
                       states_process(*workload.device), result);
  if (!request.brief) add_baselines(request, workload, environment, schedule, result);
  result.notes.merge(workload.notes);
  describe(request, workload, environment, schedule, result);
  result.lineage = std::move(workload.lineage);
  return result;
}

Result predict(const PredictionRequest& request) {
  if (const std::string& convention = request.costs.convention; !convention.empty()) {
    PredictionRequest resolved = request;
    resolved.costs.convention.clear();
    try {
      Result result = predict(resolved);
      result.notes["like"] = convention;
      return result;
    } catch (const UsageError& error) {
      throw UsageError("{} (--like {})", error.what(), convention);
    } catch (const InputError& error) {
      throw InputError("{} (--like {})", error.what(), convention);
    }
  }

  check_size(request);
  const bool trains = strategies().find(request.strategy).trains;  // before any file is read
  if (!trains && request.gradients_freed)
    throw UsageError("--gradients has no effect with strategy '{}', which trains no model", request.strategy);
  if (request.environment.nvlink && nvlink_domain(request.costs.execution))
    throw UsageError(
        "--nvlink-rate: a flexible dispatcher has the rate of the device; take --scale nvlink=FACTOR");
  Workload workload =
      trains ? resolve_workload(request.costs, request.training, request.scale, request.brief, request.known)
             : resolve_no_workload(request.costs, request.strategy);
  const bool offloads = request.training.offload != Offload{};
  const bool onto_gpu = workload.device != nullptr && workload.device->gpu;
  const auto environment = resolve_environment(request.environment,
                                               {.trace = workload.traced ? &*workload.traced : nullptr,
                                                .device = workload.device,
                                                .world_size = request.training.world_size,
                                                .threads = workload.threads,
                                                .needs_devices = !trains || (offloads && onto_gpu)},
                                               request.scale, workload.scaled != nullptr, request.known);
  check_execution(request.costs, request.strategy, request.training, workload.model);
  if (offloads && !onto_gpu)
    throw UsageError("--offload {} requires --device with a GPU, whose memory is not the host's",
                     to_text(request.training.offload));
  if (workload.device != nullptr) {
    check_threads(workload, request.costs, environment->cluster);
    check_places(environment->cluster, *workload.device, request.training.world_size);
  }
  if (!request.brief) add_lineage(request, environment->cluster, trains, workload);
  const std::shared_ptr<const Schedule> schedule = planned_schedule(request, workload);
  Result result = replay_schedule(request, std::move(workload), *environment, *schedule);
  result.forecast.schedule = schedule;
  return result;
}

}  // namespace stepcast
