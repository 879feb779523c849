#include "sim/replay/prediction_options.hpp"

#include <algorithm>
#include <iterator>

#include "core/error.hpp"
#include "core/file.hpp"
#include "core/number.hpp"
#include "core/table.hpp"
#include "models/chakra.hpp"
#include "sim/collectives/algorithm.hpp"
#include "sim/replay/convention.hpp"
#include "sim/strategies/training_config.hpp"
#include "topologies/devices.hpp"

namespace stepcast {
namespace {

constexpr int kMaxWhole = 10'000'000;  // larger values would fill the memory
constexpr int kMaxThreads = 1024;
using Request = PredictionRequest;
using Text = std::string;

/// Result of `parse()`; an InputError becomes a UsageError. \param option "": the error names it already
auto usage(const std::string& option, const auto& parse) {
  try {
    return parse();
  } catch (const InputError& error) {
    throw UsageError((option.empty() ? "" : "--" + option + ": ") + error.what());
  }
}

/// \throws UsageError below `least` or above `most`
int whole(const std::string& option, const Text& value, int least, int most = kMaxWhole) {
  const auto number = number_in<int>(value);
  if (!number) throw UsageError("--{}: found '{}', expected a whole number", option, value);
  if (*number > most || *number < least)
    throw UsageError("--{} must be at {}, got {}", option,
                     *number > most ? fmt::format("most {}", most) : "least " + std::to_string(least), value);
  return *number;
}

/// True for `truth`. \throws UsageError for a value that is neither
bool either(const std::string& option, const Text& value, const std::string& otherwise,
            const std::string& truth) {
  require_one_of(option, value, {otherwise, truth});
  return value == truth;
}

unsigned seed_of(const Text& value) {
  if (const auto seed = number_in<unsigned>(value)) return *seed;
  throw UsageError("--seed: found '{}', expected a whole number of at least 0", value);
}

BytesPerSecond rate(const std::string& option, const Text& value) {
  const auto parsed = usage("", [&] { return parse_bytes_per_second(value, "--" + option); });
  if (parsed <= BytesPerSecond(0)) throw UsageError("--{} must be above 0 B/s", option);
  return parsed;
}

Seconds launch_time(const Text& value) {
  const auto parsed = usage("", [&] { return parse_seconds(value, "--copy-launch"); });
  if (parsed < Seconds(0)) throw UsageError("--copy-launch must be at least 0s");
  return parsed;
}

/// Makes the device of a file known; --device, which may have settings, is then that device.
void take_device_file(Request& request, const Text& file) {
  const std::string& own = add_device(file).name;
  std::string& device = request.costs.device;
  if (device.empty()) device = own;
  if (device != own && !device.starts_with(own + ":"))
    throw UsageError("--device {}: --device-file {} describes '{}'", device, file, own);
}

std::string describe_devices() {
  std::string text =
      "NAME[:KEY=VALUE,...]: moves the trace to another device by rooflines, layer by layer; without "
      "--trace, "
      "estimates it from the model's layers. Settings: a rate by its dtype, memory_bandwidth, kernel_launch, "
      "process (additional bytes of a rank), and of an estimate compute_efficiency, memory_efficiency, "
      "attention_efficiency, rate_spread (of GPUs of a kind; a step waits for the slowest), activations";
  for (const DeviceModel& device : device_models()) text += "\n" + device.name + ": " + device.about.summary;
  return text;
}

/// Stores a text in a member of the request's part.
auto stores(Text CostRequest::*member) {
  return [member](Request& r, const Text& v) { r.costs.*member = v; };
}
auto stores(Text EnvironmentRequest::*member) {
  return [member](Request& r, const Text& v) { r.environment.*member = v; };
}

// clang-format off
/// Options of what computes.
std::vector<PredictionOption> cost_options() {
  using enum OptionUse;
  using enum OptionValue;
  return {
      {"strategy", kTraining, kText, "", "", [](Request& r, const Text& v) { r.strategy = v; }},
      {"micro-batches", kTraining, kWhole},
      {"recompute", kTraining},
      {"offload", kTraining},
      {"model", kRun, kText, "the trace's", "NAME[:KEY=VALUE,...] or a YAML file",
       stores(&CostRequest::model)},
      {"trace", kForecast, kText, "none",
       "costs of one rank, from 'stepcast measure'; or a layer profile, JSON of [micro-batch][tensor "
       "parallelism][layer] = forward, backward, update in seconds, with collectives of tensor parallelism",
       stores(&CostRequest::trace)},
      {"like", kForecast, kText, "none",
       fmt::format("set what a project's published recipes set, where no option sets it: {}",
                   joined(resource_names("conventions", ".yaml")))},
      {"device", kForecast, kText, "the traced one", describe_devices(), stores(&CostRequest::device)},
      {"device-file", kForecast, kText, "none",
       "a device of your own, as 'stepcast fit' writes it; --device is then this one, with optional settings",
       take_device_file},
      {"documents", kForecast, kWhole, "0",
       "with --device: tokens of a document, of which sequences are packed; attention computes nothing "
       "between two. All count as equally long: of several lengths give the sum of squares over the sum. 0: "
       "one per sequence",
       [](Request& r, const Text& v) { r.costs.documents = whole("documents", v, 0); }},
      {"phase-times", kForecast, kText, "none",
       "without --trace: known times of one rank's step and micro-batch, as forward=120ms,backward=130ms; "
       "also compute (both), optimizer, input and host (each on one core), stage (of a pipeline, whatever "
       "its layers). Layers share a phase by their flop, with --device by the estimate",
       [](Request& r, const Text& v) {
         r.costs.phases = usage("phase-times", [&] { return parse_phase_times(v); });
       }},
      {"gradients", kForecast, kText, "kept",
       "kept from step to step, or freed by zero_grad() and allocated by each backward, as since PyTorch 2.0",
       [](Request& r, const Text& v) { r.gradients_freed = either("gradients", v, "kept", "freed"); }},
      {"host-waits", kForecast, kText, "step",
       "when the launch thread of an estimated GPU synchronises: step, where the loss is read, or phase, "
       "also around every forward and backward of a micro-batch, as timers of Megatron do",
       [](Request& r, const Text& v) {
         r.replay.waits_by_phase = either("host-waits", v, "step", "phase");
       }},
      {"trace-device", kForecast, kText, "that of the trace",
       "with --device and --trace: the known device that is most like the traced one",
       stores(&CostRequest::trace_device)},
      {"precision", kForecast, kText, "fp32",
       "with --device and without --trace: fp32, tf32, bf16 or fp16, then parts that differ: "
       "bf16,reduction=bf16; parts are compute, parameters, gradients, reduction, master, optimizer",
       [](Request& r, const Text& v) {
         r.costs.precision = usage("precision", [&] { return Precision::parse(v); });
       }},
  };
}

/// Choices of kernels, one option each.
std::vector<PredictionOption> kernel_options() {
  std::vector<PredictionOption> all;
  for (const ExecutionOption& option : execution_options())
    all.push_back({option.name, OptionUse::kForecast, OptionValue::kText, Execution().*option.member,
                   option.help, [&option](Request& r, const Text& v) {
                     usage(option.name, [&] { return set_execution(option, v, r.costs.execution), 0; });
                   }});
  return all;
}

/// Options of the place where it runs, and of the batch.
std::vector<PredictionOption> environment_options() {
  using enum OptionUse;
  using enum OptionValue;
  return {
      {"calibration", kForecast, kText, "none",
       "costs of communication at its endpoints, from 'stepcast calibrate'",
       stores(&EnvironmentRequest::calibration)},
      {"backend", kRun, kText, "the calibration's, else nccl with GPUs",
       "library whose collectives are forecast: gloo or nccl", stores(&EnvironmentRequest::backend)},
      {"algorithm", kRun, kList, "", describe_algorithms(), stores(&EnvironmentRequest::algorithms)},
      {"cluster", kForecast, kText, "the calibrated machine",
       "shipped name or YAML file; one rank needs none",
       stores(&EnvironmentRequest::cluster)},
      {"world-size", kForecast, kWhole, "1", "number of ranks",
       [](Request& r, const Text& v) { r.training.world_size = whole("world-size", v, 1); }},
      {"batch", kRun, kWhole, "", "samples per rank and step; default: the trace's only one",
       [](Request& r, const Text& v) { r.costs.batch = whole("batch", v, 1); }},
      {"threads", kRun, kWhole, "", "compute threads per rank; default: the trace's only ones",
       [](Request& r, const Text& v) { r.costs.threads = whole("threads", v, 1, kMaxThreads); }},
  };
}

/// Options of the replay, of what it varies, and of copies.
std::vector<PredictionOption> replay_options() {
  using enum OptionUse;
  using enum OptionValue;
  const auto replay = [](const char* name, int ReplayRequest::*member, int least) {
    return [=](Request& r, const Text& v) { r.replay.*member = whole(name, v, least); };
  };
  return {
      {"steps", kForecast, kWhole, "12", "steps to replay", replay("steps", &ReplayRequest::steps, 1)},
      {"warmup", kForecast, kWhole, "2", "steps replayed before and not reported",
       replay("warmup", &ReplayRequest::warmup_steps, 0)},
      {"compute", kRun, kText, "real",
       "of the run that is forecast: real, or replayed, where ranks wait for traced times and use no core",
       [](Request& r, const Text& v) {
         r.replay.compute_waits = either("compute", v, "real", "replayed");
       }},
      {"replicas", kForecast, kWhole, "1", "replays with other seeds, pooled",
       replay("replicas", &ReplayRequest::replicas, 1)},
      {"seed", kRun, kText, "1", "of the resampling",
       [](Request& r, const Text& v) { r.replay.seed = seed_of(v); }},
      {"resample", kForecast, kYesNo, "yes",
       "draw measured steps, so that the slowest of the ranks counts (yes), or use medians (no)",
       [](Request& r, const Text& v) { r.replay.resample = either("resample", v, "no", "yes"); }},
      {"fidelity", kForecast, kText, "auto",
       "of collectives: auto, message or aggregate (NCCL: auto or aggregate)",
       [](Request& r, const Text& v) {
         r.environment.fidelity = usage("", [&] { return value_of(kFidelities, "fidelity", v); });
       }},
      {"exact", kForecast, kFlag, "",
       "replay every rank, and let SimGrid share the links (NCCL: up to 512 ranks); the default replays one "
       "rank per class of symmetric ranks",
       [](Request& r, const Text& /*yes*/) { r.environment.exact = r.environment.simgrid = true; }},
      {"scale", kForecast, kText, "nothing",
       "RESOURCE=FACTOR[,...]: factor on compute, on that of one rank (rank3) or stage (stage0), memory "
       "(bandwidth of a device), host (launch overhead), endpoints (of a calibration), pageable (copies), "
       "latency, a tier of links (nvlink, pcie, smp, network1 at the ports, network2 above, ...) or a link "
       "by its name; 'stepcast explain' tries 1.1 of each",
       [](Request& r, const Text& v) { r.scale = parse_scales(v); }},
      {"extrapolate", kForecast, kFlag, "", "allow a batch beyond the traced ones",
       [](Request& r, const Text& /*yes*/) { r.costs.extrapolate = true; }},
      {"pageable-rate", kForecast, kText, "10GB/s",
       "copies: rate at which one thread stages between pageable host memory and a device",
       [](Request& r, const Text& v) { r.environment.copies.pageable = rate("pageable-rate", v); }},
      {"pcie-rate", kForecast, kText, "the cluster's",
       "usable bandwidth of every PCIe link and direction, which a copy from pinned memory gets alone; "
       "degraded links keep their part of it",
       [](Request& r, const Text& v) { r.environment.pcie = rate("pcie-rate", v); }},
      {"nvlink-rate", kForecast, kText, "the cluster's",
       "usable bandwidth of all NVLinks between a GPU and a switch or another GPU, in each direction",
       [](Request& r, const Text& v) { r.environment.nvlink = rate("nvlink-rate", v); }},
      {"host-memory-rate", kForecast, kText, "150GB/s",
       "--offload: rate at which updates on the host move bytes of one socket's memory",
       [](Request& r, const Text& v) { r.environment.copies.host_memory = rate("host-memory-rate", v); }},
      {"copy-launch", kForecast, kText, "5us", "copies: launch overhead of one",
       [](Request& r, const Text& v) { r.environment.copies.launch = launch_time(v); }},
  };
}
// clang-format on

/// Traces of Chakra are replayed as they are, also as --strategy chakra. DDP, which trains and needs no
/// options, takes the place of a strategy.
OptionTexts with_strategy(OptionTexts options) {
  const auto model = options.find("model");
  if (model == options.end() || !is_chakra(model->second)) return options;
  if (const auto given = options.emplace("strategy", "chakra").first; given->second != "chakra")
    throw UsageError("--strategy {} has no effect with --model {}, whose traces are replayed; leave it out",
                     given->second, model->second);
  options["strategy"] = "ddp";
  return options;
}

}  // namespace

const std::vector<PredictionOption>& prediction_options() {
  static const std::vector<PredictionOption> kAll = [] {
    std::vector<PredictionOption> all;
    for (auto* part : {cost_options, kernel_options, environment_options, replay_options})
      for (PredictionOption& option : part()) all.push_back(std::move(option));
    return all;
  }();
  return kAll;
}

PredictionRequest prediction_request(const OptionTexts& given) {
  const auto convention = given.find("like");
  const LikeOptions all =
      convention == given.end() ? LikeOptions{given, ""} : Convention(convention->second).added_to(given);
  const OptionTexts options = with_strategy(all.options);
  PredictionRequest request;
  request.costs.convention = all.note;
  request.training = training_config(options);
  std::vector<std::string> known;
  for (const PredictionOption& option : prediction_options()) {
    known.push_back(option.name);
    const auto set = options.find(option.name);
    if (set != options.end() && option.set) option.set(request, set->second);
  }
  if (given.contains("host-memory-rate") && request.training.offload.optimizer == 0.0)
    throw UsageError("--host-memory-rate has no effect without --offload optimizer or parameters");
  for (const auto& [name, value] : options) {
    if (request.training.options.contains(name) || name == kMeshOption) continue;
    if (std::ranges::find(known, name) == known.end())
      throw UsageError(unknown_choice("option", name, known));
  }
  return request;
}

EnvironmentRequest environment_request(const OptionTexts& options) {
  PredictionRequest request;
  for (const PredictionOption& option : prediction_options())
    if (const auto given = options.find(option.name); given != options.end() && option.set)
      option.set(request, given->second);
  return request.environment;
}

}  // namespace stepcast
