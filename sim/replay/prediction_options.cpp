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

/// True for `truth`. \throws UsageError for a value that is neither
bool either(const Given& given, const Text& otherwise, const Text& truth) {
  require_one_of(given.name, given.text, {otherwise, truth});
  return given.text == truth;
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

/// The value of an enumeration's table. \throws UsageError
auto named_value(const auto& table, const Given& given) {
  return parsed_option("", [&] { return value_of(table, given.name.c_str(), given.text); });
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

/// Stores a text in a member of the request's part.
auto stores(Text CostRequest::*member) {
  return [member](Request& r, const Given& g) { r.costs.*member = g.text; };
}
auto stores(Text EnvironmentRequest::*member) {
  return [member](Request& r, const Given& g) { r.environment.*member = g.text; };
}
/// Stores a whole number of at least `least`.
auto stores(int ReplayRequest::*member, int least) {
  return [=](Request& r, const Given& g) { r.replay.*member = whole_number(g.name, g.text, least); };
}

/// Options of what computes.
std::vector<PredictionOption> cost_options() {
  using enum OptionUse;
  return {
      {"strategy", kTraining, [](Request& r, const Given& g) { r.strategy = g.text; }},
      {"micro-batches", kTraining},
      {"recompute", kTraining},
      {"offload", kTraining},
      {"model", kRun, stores(&CostRequest::model)},
      {"trace", kForecast, stores(&CostRequest::trace)},
      {"like", kForecast},
      {"device", kForecast, stores(&CostRequest::device)},
      {"device-file", kForecast},
      {"documents", kForecast,
       [](Request& r, const Given& g) { r.costs.documents = whole_number(g.name, g.text, 0); }},
      {"phase-times", kForecast,
       [](Request& r, const Given& g) { r.costs.phases = parse_phase_times(g.text); }},
      {"gradients", kForecast,
       [](Request& r, const Given& g) { r.gradients_freed = either(g, "kept", "freed"); }},
      {"host-waits", kForecast,
       [](Request& r, const Given& g) { r.replay.host_waits = named_value(kHostWaits, g); }},
      {"trace-device", kForecast, stores(&CostRequest::trace_device)},
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
      {"calibration", kForecast, stores(&EnvironmentRequest::calibration)},
      {"backend", kRun, stores(&EnvironmentRequest::backend)},
      {"algorithm", kRun, stores(&EnvironmentRequest::algorithms)},
      {"cluster", kForecast, stores(&EnvironmentRequest::cluster)},
      {"world-size", kForecast,
       [](Request& r, const Given& g) { r.training.world_size = whole_number(g.name, g.text, 1); }},
      {"batch", kRun, [](Request& r, const Given& g) { r.costs.batch = whole_number(g.name, g.text, 1); }},
      {"threads", kRun,
       [](Request& r, const Given& g) { r.costs.threads = whole_number(g.name, g.text, 1, kMostThreads); }},
  };
}

/// Options of the replay, of what it varies, and of copies.
std::vector<PredictionOption> replay_options() {
  using enum OptionUse;
  return {
      {"steps", kForecast, stores(&ReplayRequest::steps, 1)},
      {"warmup", kForecast, stores(&ReplayRequest::warmup_steps, 0)},
      {"compute", kRun,
       [](Request& r, const Given& g) { r.replay.compute_waits = either(g, "real", "replayed"); }},
      {"replicas", kForecast, stores(&ReplayRequest::replicas, 1)},
      {"seed", kRun, [](Request& r, const Given& g) { r.replay.seed = seed_of(g); }},
      {"resample", kForecast, [](Request& r, const Given& g) { r.replay.resample = either(g, "no", "yes"); }},
      {"fidelity", kForecast,
       [](Request& r, const Given& g) { r.environment.fidelity = named_value(kFidelities, g); }},
      {"exact", kForecast,
       [](Request& r, const Given& /*yes*/) { r.environment.exact = r.environment.simgrid = true; }, true},
      {"scale", kForecast, [](Request& r, const Given& g) { r.scale = parse_scales(g.text); }},
      {"extrapolate", kForecast, [](Request& r, const Given& /*yes*/) { r.costs.extrapolate = true; }, true},
      {"pageable-rate", kForecast,
       [](Request& r, const Given& g) { r.environment.copies.pageable = rate(g); }},
      {"pcie-rate", kForecast, [](Request& r, const Given& g) { r.environment.pcie = rate(g); }},
      {"nvlink-rate", kForecast, [](Request& r, const Given& g) { r.environment.nvlink = rate(g); }},
      {"host-memory-rate", kForecast,
       [](Request& r, const Given& g) { r.environment.copies.host_memory = rate(g); }},
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
  const bool scales = std::ranges::count(request.scale, "pageable", &ResourceScale::resource) > 0;
  for (const auto& [name, is_given] : {std::pair{"pageable-rate", given.contains("pageable-rate")},
                                       {"scale pageable", scales},
                                       {"copy-launch", given.contains("copy-launch") && !offloads}})
    if (is_given && strategies().find(request.strategy).trains)
      throw UsageError("--{} has no effect with strategy '{}', which makes no such copies", name,
                       request.strategy);
  const std::vector<std::string> known = transformed(prediction_options(), &PredictionOption::name);
  for (const auto& [name, value] : options)
    if (!request.training.options.contains(name) && name != kMeshOption &&
        std::ranges::find(known, name) == known.end())
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
