#include "sim/replay/prediction_options.hpp"

#include <algorithm>
#include <set>

#include "core/error.hpp"
#include "core/file.hpp"
#include "core/number.hpp"
#include "core/ranges.hpp"
#include "core/table.hpp"
#include "models/chakra.hpp"
#include "sim/collectives/algorithm.hpp"
#include "sim/replay/convention.hpp"
#include "topologies/devices.hpp"

namespace stepcast {
namespace {

using Request = PredictionRequest;
using Given = GivenOption;
using Text = std::string;

// Readers of values. \throws UsageError, InputError for a value that is not valid

Text text(const Given& given) { return given.text; }

auto whole_number(int least, int most = kMostWhole) {
  return [=](const Given& given) { return stepcast::whole_number(given.name, given.text, least, most); };
}

/// True for `truth`.
auto either(const char* otherwise, const char* truth) {
  return [=](const Given& given) {
    require_one_of(given.name, given.text, {otherwise, truth});
    return given.text == truth;
  };
}

/// A value of an enumeration's table.
auto named_value(const auto& table) {
  return [&table](const Given& given) {
    return parsed_option("", [&] { return value_of(table, given.name.c_str(), given.text); });
  };
}

unsigned seed_of(const Given& given) {
  if (const auto seed = number_in<unsigned>(given.text)) return *seed;
  throw UsageError("--seed: found '{}', expected a whole number of at least 0", given.text);
}

BytesPerSecond rate(const Given& given) {
  const BytesPerSecond parsed = parse_bytes_per_second(given.text, "--" + given.name);
  if (parsed <= BytesPerSecond(0)) throw UsageError("--{} must be above 0 B/s", given.name);
  return parsed;
}

/// Makes the device of --device-file known. --device, which may have settings, is that device also for
/// conventions.
OptionTexts with_device(OptionTexts options) {
  const auto file = options.find("device-file");
  if (file == options.end()) return options;
  const std::string& own = add_device(file->second).name;
  Text& device = options["device"];
  if (device.empty()) device = own;
  if (device != own && !device.starts_with(own + ":"))
    throw UsageError("--device {}: --device-file {} describes '{}'", device, file->second, own);
  return options;
}

/// Stores the option, as `read` understands it, in the member of the request that `path` leads to:
/// `r.*part.*member`.
auto stores(auto read, auto... path) {
  return [=](Request& r, const Given& g) { (r.*....*path) = read(g); };
}

/// The same in a member of the costs, the environment or the replay.
auto costs(auto read, auto member) { return stores(read, &Request::costs, member); }
auto place(auto read, auto... path) { return stores(read, &Request::environment, path...); }
auto replay(auto read, auto member) { return stores(read, &Request::replay, member); }

/// Options of what computes.
std::vector<PredictionOption> cost_options() {
  using enum OptionUse;
  return {
      {"strategy", kTraining, stores(text, &Request::strategy)},
      {"micro-batches", kTraining},
      {"recompute", kTraining},
      {"offload", kTraining},
      {"model", kRun, costs(text, &CostRequest::model)},
      {"trace", kForecast, costs(text, &CostRequest::trace)},
      {"like", kForecast},
      {"device", kForecast, costs(text, &CostRequest::device)},
      {"device-file", kForecast},
      {"documents", kForecast, costs(whole_number(0), &CostRequest::documents)},
      {"phase-times", kForecast,
       [](Request& r, const Given& g) { r.costs.phases = parse_phase_times(g.text); }},
      {"gradients", kForecast, stores(either("kept", "freed"), &Request::gradients_freed)},
      {"host-waits", kForecast, replay(named_value(kHostWaits), &ReplayRequest::host_waits)},
      {"trace-device", kForecast, costs(text, &CostRequest::trace_device)},
      {"precision", kForecast,
       [](Request& r, const Given& g) { r.costs.precision = Precision::parse(g.text); }},
  };
}

/// Choices of kernels, one option each.
std::vector<PredictionOption> kernel_options() {
  return transformed(execution_options(), [](const ExecutionOption& option) {
    return PredictionOption{option.name, OptionUse::kForecast, [&option](Request& r, const Given& given) {
                              set_execution(option, given.text, r.costs.execution);
                            }};
  });
}

/// Options of the place where it runs, and of the batch.
std::vector<PredictionOption> environment_options() {
  using enum OptionUse;
  return {
      {"calibration", kForecast, place(text, &EnvironmentRequest::calibration)},
      {"backend", kRun, place(text, &EnvironmentRequest::backend)},
      {"algorithm", kRun, place(text, &EnvironmentRequest::algorithms)},
      {"cluster", kForecast, place(text, &EnvironmentRequest::cluster)},
      {"world-size", kForecast, stores(whole_number(1), &Request::training, &TrainingConfig::world_size)},
      {"batch", kRun, costs(whole_number(1), &CostRequest::batch)},
      {"threads", kRun, costs(whole_number(1, kMostThreads), &CostRequest::threads)},
  };
}

/// Options of the replay, of what it varies, and of copies.
std::vector<PredictionOption> replay_options() {
  using enum OptionUse;
  return {
      {"steps", kForecast, replay(whole_number(1), &ReplayRequest::steps)},
      {"warmup", kForecast, replay(whole_number(0), &ReplayRequest::warmup_steps)},
      {"compute", kRun, replay(either("real", "replayed"), &ReplayRequest::compute_waits)},
      {"replicas", kForecast, replay(whole_number(1), &ReplayRequest::replicas)},
      {"seed", kRun, replay(seed_of, &ReplayRequest::seed)},
      {"resample", kForecast, replay(either("no", "yes"), &ReplayRequest::resample)},
      {"fidelity", kForecast, place(named_value(kFidelities), &EnvironmentRequest::fidelity)},
      {"exact", kForecast,
       [](Request& r, const Given& /*yes*/) { r.environment.exact = r.environment.simgrid = true; }, true},
      {"scale", kForecast, [](Request& r, const Given& g) { r.scale = parse_scales(g.text); }},
      {"extrapolate", kForecast, [](Request& r, const Given& /*yes*/) { r.costs.extrapolate = true; }, true},
      {"pageable-rate", kForecast, place(rate, &EnvironmentRequest::copies, &CopyCosts::pageable)},
      {"pcie-rate", kForecast, place(rate, &EnvironmentRequest::pcie)},
      {"nvlink-rate", kForecast, place(rate, &EnvironmentRequest::nvlink)},
      {"host-memory-rate", kForecast, place(rate, &EnvironmentRequest::copies, &CopyCosts::host_memory)},
      {"copy-launch", kForecast,
       [](Request& r, const Given& g) {
         r.environment.copies.launch = parse_seconds(g.text, "--copy-launch");
       }},
  };
}

/// Stores the value of an option that has one. \throws UsageError
void store(const PredictionOption& option, const Text& value, Request& request) {
  if (option.set) parsed_option(option.name, [&] { option.set(request, {option.name, value}); });
}

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

PredictionRequest prediction_request(const OptionTexts& asked) {
  const OptionTexts given = with_device(asked);
  const auto convention = given.find("like");
  const LikeOptions all =
      convention == given.end() ? LikeOptions{given, ""} : Convention(convention->second).added_to(given);
  const OptionTexts options = with_strategy(all.options);
  PredictionRequest request;
  request.costs.convention = all.note;
  request.training = training_config(options);
  for (const PredictionOption& option : prediction_options())
    if (const auto set = options.find(option.name); set != options.end()) store(option, set->second, request);
  if (const std::string& cluster = request.environment.cluster;
      request.costs.execution.dispatch_overlap == "micro-batches" && !cluster.empty())
    request.costs.host = gpus_per_host(cluster, request.costs.host);
  if (given.contains("host-memory-rate") && request.training.offload.optimizer == 0.0)
    throw UsageError("--host-memory-rate has no effect without --offload optimizer or parameters");
  const bool offloads = request.training.offload != Offload{};
  const bool scales = contains(request.scale, "pageable", &ResourceScale::resource);
  for (const auto& [name, is_given] : {std::pair{"pageable-rate", given.contains("pageable-rate")},
                                       {"scale pageable", scales},
                                       {"copy-launch", given.contains("copy-launch") && !offloads}})
    if (is_given && strategies().find(request.strategy).trains)
      throw UsageError("--{} has no effect with strategy '{}', which makes no such copies", name,
                       request.strategy);
  const std::vector<std::string> known = transformed(prediction_options(), &PredictionOption::name);
  for (const auto& [name, value] : options)
    if (!request.training.options.contains(name) && name != kMeshOption && !contains(known, name))
      throw UsageError(unknown_choice("option", name, known));
  return request;
}

CollectiveRequest environment_request(const OptionTexts& options) {
  static const std::set<Text> kParts{"algorithm", "backend",     "calibration", "cluster", "exact",
                                     "fidelity",  "nvlink-rate", "pcie-rate",   "scale",   "world-size"};
  PredictionRequest request;
  for (const auto& [name, value] : options) {
    if (!kParts.contains(name)) throw UsageError("--collectives cannot be combined with --{}", name);
    store(*std::ranges::find(prediction_options(), name, &PredictionOption::name), value, request);
  }
  return {request.environment, request.scale};
}

}  // namespace stepcast
