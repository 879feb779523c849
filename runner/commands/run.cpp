#include <algorithm>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "core/environment.hpp"
#include "core/file.hpp"
#include "models/model.hpp"
#include "records/trace.hpp"
#include "runner/commands/rank_options.hpp"
#include "runner/engine/compute_environment.hpp"
#include "runner/engine/torch_engine.hpp"
#include "runner/execute/copied_run.hpp"
#include "runner/execute/replayed_run.hpp"
#include "runner/measure/gpu_watch.hpp"
#include "sim/cli/option.hpp"
#include "sim/cli/result_summary.hpp"
#include "sim/collectives/algorithm.hpp"
#include "sim/strategies/strategy.hpp"
#include "sim/strategies/tensor_parallel.hpp"

namespace stepcast::run_command {
namespace {

void declare(po::options_description& options) {
  declare_training_options(options);
  declare_options(options, "run", {{"algorithms", describe_algorithms()}});
}

std::string required(const po::variables_map& values, const std::string& name) {
  if (values.count(name) == 0) throw UsageError("--" + name + " is missing; see 'stepcast help run'");
  return text_option(values, name);
}

bool is_replayed(const po::variables_map& values) {
  const std::string compute = text_option(values, "compute");
  require_one_of("compute", compute, {"real", "replayed"});
  if (values["reference-slowdown"].as<double>() < 0.0)
    throw UsageError("--reference-slowdown must be a number of at least 0, for example 1.2");
  if (values["compute-speed"].as<double>() <= 0.0)
    throw UsageError("--compute-speed must be a number above 0, for example 0.67");
  if (compute == "replayed")
    reject_options(values, {"data"}, "--compute replayed, which trains nothing");
  else
    reject_options(values, {"resample", "compute-speed"}, "--compute real");
  if (compute == "real" && (values.count("split") == 0 || text_option(values, "split") != "balanced"))
    reject_options(values, {"trace"}, "--compute real, except for --split balanced");
  return compute == "replayed";
}

bool is_reference(const po::variables_map& values) {
  const std::string engine = text_option(values, "engine");
  require_one_of("engine", engine, {"schedule", "reference"});
  if (engine == "reference" && is_replayed(values))
    throw UsageError("--compute replayed waits within a Schedule; --engine reference runs without one");
  if (engine == "reference" && values.count("algorithm") != 0)
    throw UsageError("--algorithm requires --engine schedule; PyTorch's own parts use Gloo's algorithms");
  return engine == "reference";
}

/// Reads --steps, --warmup and --timeline-steps. \param line printed after about five steps and the last one;
/// "": none
void read_steps(const po::variables_map& values, const char* line, StepLoop& loop) {
  loop.steps = int_option(values, "steps", 1);
  loop.warmup_steps = int_option(values, "warmup", 0);
  loop.shown_steps = numbers_option(values, "timeline-steps");
  loop.on_step = [line, steps = loop.steps](int step, double loss) {
    const bool is_shown = step >= 0 && (step % std::max(1, steps / 5) == 0 || step == steps - 1);
    if (is_shown) fmt::print(stderr, fmt::runtime(line), step, loss);
  };
}

RunOptions run_options(const po::variables_map& values, bool prints) {
  RunOptions options;
  options.batch = int_option(values, "batch", 1);
  options.threads = int_option(values, "threads", 1, kMostThreads);
  read_steps(values, prints ? "step {}: loss {:.4f}\n" : "", options);
  options.seed = values["seed"].as<unsigned>();
  options.data_folder = text_option(values, "data");
  return options;
}

/// Operations of rank 0 in one step, and the gradient buckets, for an engine without breakdown.
std::string span_table(const Result& result) {
  Table table({"operation of rank 0", "time"});
  for (const Span& span : result.spans)
    if (span.rank == 0) table.add({span.name, to_text(Seconds(span.end_s - span.start_s))});
  std::string text = table.text();
  if (const auto note = result.notes.find("buckets"); note != result.notes.end()) {
    text += "\nbuckets, in order of reduction:";
    for (const nlohmann::json& bucket : nlohmann::json::parse(note->second))
      text += fmt::format(" {} of {} tensors;", to_text(Bytes(bucket.at("bytes").get<double>())),
                          bucket.at("tensors").size());
    text.back() = '\n';
  }
  return text;
}

void print_summary(const Result& result) {
  std::vector<double> all;
  for (const auto& rank : result.step_time_s) all.insert(all.end(), rank.begin(), rank.end());
  std::cout << fmt::format("{}: median step {} (p10 {}, p90 {})", describe(result.configuration),
                           to_text(Seconds(result.median_step_time_s())),
                           to_text(Seconds(quantile(all, 0.1))), to_text(Seconds(quantile(all, 0.9))));
  if (result.configuration.data_parallel > 0) std::cout << ", " << throughput_text(result);
  if (!result.loss.empty()) std::cout << ", loss " << result.loss.front() << " to " << result.loss.back();
  std::cout << "\n\n";
  if (result.breakdown.empty())
    std::cout << span_table(result);
  else
    std::cout << rank_table(result) << balance_line(result);
}

/// Sets the context of a run that computed here.
void add_origin(const po::variables_map& values, Result& result) {
  GpuState gpu = std::move(result.context.gpu);
  result.context = make_compute_context(kResultSchema, command_line(), result.configuration.threads,
                                        values["seed"].as<unsigned>());
  result.context.gpu = std::move(gpu);
  for (std::string& doubt : doubts(result.context.gpu)) result.context.warnings.push_back(std::move(doubt));
  const std::string data = text_option(values, "data");
  result.notes["data"] = data.empty() ? "synthetic" : data;
}

/// Sets the context of a run whose compute was replayed.
void add_replayed_origin(const po::variables_map& values, Result& result, const Model& model,
                         const RankSession& session) {
  result.context = make_rank_context(kResultSchema, values, session);
  result.context.threads = result.configuration.threads;
  result.context.seed = values["seed"].as<unsigned>();
  std::string source = "that '" + model.specification + "' declares";
  if (values.count("trace") != 0) {
    const std::string trace = text_option(values, "trace");
    result.lineage.push_back(make_ancestor("trace", trace));
    source = "of " + trace + (flag_option(values, "resample") ? ", resampled" : ", medians");
  }
  result.notes["compute"] = "waits for the times " + source;
}

/// For a pipeline, the last stage of the first replica; -1 if nothing is trained.
int first_rank_with_loss(const Schedule& schedule) {
  for (int rank = 0; rank < schedule.world_size; ++rank)
    if (computes(schedule.program(rank), Phase::kLoss)) return rank;
  return -1;
}

ExitCode write_result(const po::variables_map& values, Result& result, const RankSession& session) {
  result.configuration.steps = values["steps"].as<int>();
  result.context.placement = {session.binding, session.scheduling};
  const bool printed = write_output(values, [&] { return to_file_text(result); });
  write_timeline_option(values, result);
  if (!printed) print_summary(result);
  return ExitCode::kDone;
}

ExitCode finish(const po::variables_map& values, Result& result, const Schedule& schedule, const Model& model,
                const TrainingConfig& training, const RankSession& session) {
  Configuration& configuration = result.configuration;
  configuration = configuration_of(schedule, model.specification, training.batch);
  if (first_rank_with_loss(schedule) < 0) result.loss.clear();
  configuration.add_option("algorithm", to_text(session.place.algorithms));
  configuration.threads = values["threads"].as<int>();
  configuration.backend = text_option(values, "backend");
  configuration.compute = text_option(values, "compute");
  configuration.engine = text_option(values, "engine");
  result.machine.slowdown = values["reference-slowdown"].as<double>();
  result.lineage = {make_ancestor("model", model.path)};
  if (is_replayed(values))
    add_replayed_origin(values, result, model, session);
  else
    add_origin(values, result);
  result.notes["ranks from"] = session.ranks.source;
  std::vector<std::string> given{"algorithm"};
  append(given, transformed(training.options, [](const auto& one) { return one.first; }));
  if (const std::string note =
          options_without_effect(given, training, {}, session.place.algorithms, schedule);
      !note.empty())
    fmt::print(stderr, "stepcast run: {}\n", result.notes["no effect"] = note);
  return write_result(values, result, session);
}

ReplayedRunOptions replayed_options(const po::variables_map& values, bool prints) {
  ReplayedRunOptions options;
  read_steps(values, prints ? "step {}\n" : "", options);
  options.resample = flag_option(values, "resample");
  options.seed = values["seed"].as<unsigned>();
  options.samples =
      static_cast<double>(int_option(values, "batch", 1)) / training_config(values).micro_batches;
  options.speed = values["compute-speed"].as<double>() * environment_number(kHostSpeedVariable).value_or(1.0);
  return options;
}

Model model_to_run(const po::variables_map& values, bool replayed) {
  const TrainingConfig training = training_config(values);
  if (const RecomputedPart part = training.recompute.part;
      part != RecomputedPart::kNothing && part != RecomputedPart::kCoreAttention)
    throw CapabilityError(
        "--recompute {}: runs recompute whole blocks (full, every:N) or attention only (selective); "
        "other parts can only be forecast, for --device",
        to_text(part));
  if (training.offload != Offload{})
    throw CapabilityError("--offload {}: runs keep every array where it is; it can only be forecast",
                          to_text(training.offload));
  Model model =
      recomputing(load_model(shared_by(required(values, "model"), training.mesh)), training.recompute.part);
  model = in_precision(std::move(model), precision_option(values), text_option(values, "device") == "cuda");
  if (model.has_fixed_times() && !replayed)
    throw InputError(model.path + ": model '" + model.name +
                     "' declares its times; predict it, or run it with --compute replayed");
  return model;
}

TrainingConfig training_of(const po::variables_map& values, const Model& model) {
  TrainingConfig training = training_config(values);
  training.world_size = planned_world_size(values);
  training.batch = int_option(values, "batch", 1);
  if (values.count("trace") != 0)
    training.segment_times =
        traced_costs(model, load_trace_of(model, text_option(values, "trace"))
                                .at(training.batch / training.micro_batches, values["threads"].as<int>(), {}))
            .segment_times();
  return training;
}

/// \throws UsageError, CapabilityError for combinations that --device cuda does not support, and for a
/// backend whose arrays are in a device's memory while LibTorch computes in this host's
void check_device(const po::variables_map& values, const Schedule& schedule, bool replayed) {
  const std::string backend = text_option(values, "backend");
  if (!names_device_option(values)) {
    if (find_backend(backend).add) return;
    throw CapabilityError(
        "--backend {0} moves arrays of GPUs and requires 'stepcast run --device cuda'; 'stepcast bench "
        "--backend {0}' measures it",
        backend);
  }
  if (replayed)
    throw UsageError("--device cuda has no effect with --compute replayed, where nothing computes");
  if (is_reference(values)) throw CapabilityError("--device cuda requires --engine schedule");
  if (schedule.world_size > 1 && find_backend(backend).add)
    throw CapabilityError("--device cuda on " + std::to_string(schedule.world_size) +
                          " ranks requires --backend nccl: " + backend + " moves arrays of this host");
}

/// \throws CapabilityError for what is supported in fp32 only
void check_precision(const po::variables_map& values, bool replayed) {
  const Precision precision = precision_option(values);
  if (precision == Precision{}) return;
  const std::string option = "--precision " + to_text(precision);
  if (replayed)
    throw CapabilityError(option + " requires --compute real: replayed compute moves float32 arrays");
  if (is_reference(values))
    throw CapabilityError(option +
                          " requires --engine schedule: the reference engine trains in fp32, because c10d's "
                          "ProcessGroupGloo does not sum bfloat16");
}

ExitCode run_for_real(const po::variables_map& values, const Model& model, const TrainingConfig& training,
                      const Schedule& schedule) {
  require_thread_environment(values["threads"].as<int>(), command_line());
  return run_on_ranks(values, [&](RankSession& session) {
    const bool prints = session.ranks.rank == first_rank_with_loss(schedule);
    RunOptions options = run_options(values, prints);
    const std::unique_ptr<DeviceStream> device = device_option(values, session.ranks.local_rank);
    options.device = device.get();
    options.precision = precision_option(values);
    if (device == nullptr) check_blas(flag_option(values, "allow-reference-blas"));
    GpuWatch watch(device.get());
    const TorchEngine& torch = torch_engine();
    Result result = is_reference(values)
                        ? torch.run_reference(model, schedule.strategy, training, session, options, nullptr)
                        : torch.run_schedule(model, schedule, session, options, nullptr);
    result.context.gpu = watch.report();
    return session.ranks.rank == 0 ? finish(values, result, schedule, model, training, session)
                                   : ExitCode::kDone;
  });
}

ExitCode run_waiting(const po::variables_map& values, const Model& model, const TrainingConfig& training,
                     const Schedule& schedule) {
  const std::string trace = text_option(values, "trace");
  const PhaseCosts times =
      step_times_of(model, schedule, trace, training.batch, int_option(values, "threads", 1, kMostThreads));
  return run_on_ranks(values, [&](RankSession& session) {
    const bool is_first = session.ranks.rank == 0;
    Result result = run_replayed(model, schedule, session, times, replayed_options(values, is_first));
    return is_first ? finish(values, result, schedule, model, training, session) : ExitCode::kDone;
  });
}

/// \throws UsageError for options of training
void check_no_model(const po::variables_map& values, const std::string& strategy) {
  reject_options(values,
                 {"model", "trace", "engine", "compute", "resample", "compute-speed", "batch", "threads",
                  "data", "precision", "algorithm", "reference-slowdown"},
                 "strategy '" + strategy + "', which trains no model");
  if (text_option(values, "device") == "cpu")
    throw UsageError("strategy '" + strategy + "' copies to the memories of GPUs and requires --device cuda");
}

/// Runs a Schedule of copies, with a GPU for each rank.
ExitCode run_copies(const po::variables_map& values, const std::string& strategy) {
  check_no_model(values, strategy);
  static_cast<void>(names_device_option(values));
  Model model;
  model.name = model.specification = "no model";
  TrainingConfig training = training_config(values);
  training.world_size = int_option(values, "nproc", 1, kMostThreads);
  training.batch = 1;
  const Schedule schedule = build_schedule(strategy, model, training);
  check_output(values);
  check_timeline(values, training.world_size);
  return run_in_one_process(values, "strategy '" + strategy + "'", [&](RankSession& session) {
    const auto& factory = find_device_library("--device cuda");
    const auto copies = factory.value.make_copies();
    StepLoop loop;
    read_steps(values, "step {}\n", loop);
    loop.shown_steps.clear();
    Result result = run_copied(schedule, session, *copies, loop);
    result.configuration = configuration_of(schedule, model.specification, training.batch);
    result.configuration.backend = "nccl";  // as in forecasts for GPUs, although NCCL is not used
    result.context = make_run_context(kResultSchema, command_line());
    add_library(result.context, factory.value.library);
    result.context.libraries["device"] = copies->name(0);
    result.context.warnings = staged_copies(schedule, *copies);
    result.notes["checked"] = "every byte on every GPU, of one more step";
    return write_result(values, result, session);
  });
}

ExitCode run(const po::variables_map& values) {
  const std::string strategy = required(values, "strategy");
  if (!strategies().find(strategy).trains) return run_copies(values, strategy);
  const bool replayed = is_replayed(values);
  const Model model = model_to_run(values, replayed);
  const TrainingConfig training = training_of(values, model);
  const Schedule schedule = build_schedule(strategy, model, training);
  if (const int ranks = model.parallel.tensor * model.parallel.context * model.parallel.expert_ranks();
      is_reference(values) && ranks > 1)
    throw UsageError("--engine reference trains whole models; " + model.specification + " is sharded over " +
                     std::to_string(ranks) + " ranks");
  if (is_reference(values))
    torch_engine().require_reference(strategy, training, text_option(values, "backend"),
                                     int_option(values, "warmup", 0));
  static_cast<void>(run_options(values, false));
  check_device(values, schedule, replayed);
  check_precision(values, replayed);
  check_output(values);
  check_timeline(values, training.world_size);
  return replayed ? run_waiting(values, model, training, schedule)
                  : run_for_real(values, model, training, schedule);
}

const Registration<Command> kRun{commands(), "run", {.declare = declare, .run = run}, 40};

}  // namespace
}  // namespace stepcast::run_command
