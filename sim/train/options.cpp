#include <algorithm>
#include <cmath>

#include "core/file.hpp"
#include "core/number.hpp"
#include "core/table.hpp"
#include "sim/strategies/strategy.hpp"
#include "sim/train/training.hpp"

namespace stepcast {
namespace {

using Request = TrainingRequest;
using Text = std::string;

double fraction_of(const Text& text) {
  const auto number = text.ends_with('%') ? number_in<double>(text.substr(0, text.size() - 1)) : std::nullopt;
  if (!number || !(*number >= 0.0 && *number < 100.0))
    throw InputError("'{}' is not a percentage from 0% to below 100%; write for example 10%", text);
  return *number / 100.0;
}

int whole_of(const Text& text, int least, int most) {
  const auto number = number_in<int>(text);
  if (!number || *number < least || *number > most)
    throw InputError("'{}' is not a whole number from {} to {}", text, least, most);
  return *number;
}

auto amount(double Request::*member) {
  return [member](Request& r, const Text& v) { r.*member = parse_amount(v); };
}

}  // namespace

double parse_amount(const std::string& text) {
  static constexpr std::pair<char, double> kUnits[]{{'k', 1e3}, {'M', 1e6}, {'B', 1e9}, {'T', 1e12}};
  double unit = 1.0;
  for (const auto& [letter, factor] : kUnits)
    if (text.ends_with(letter)) unit = factor;
  const auto number = number_in<double>(std::string_view(text).substr(0, text.size() - (unit > 1.0 ? 1 : 0)));
  if (!number || !(*number * unit > 0.0 && *number * unit < 1e18))
    throw InputError("'{}' is not a number above 0; write for example 15T, 300B, 95k or 2000", text);
  return *number * unit;
}

// clang-format off
const std::vector<TrainOption>& train_options() {
  static const std::vector<TrainOption> kAll{
      {"tokens", "", "tokens to train on, as 15T or 300B", amount(&Request::tokens)},
      {"steps", "", "steps to train, instead of --tokens", amount(&Request::steps), true},
      {"epochs", "", "epochs of --epoch-samples, instead of --tokens", amount(&Request::epochs)},
      {"epoch-samples", "", "samples of an epoch", amount(&Request::epoch_samples)},
      {"failures", "", fmt::format("failure data: {}, a YAML file, mtbf=3h (of the job), mtbf=50000h/device, "
       "or a log (start,end,cause,GPUs) in a .csv", joined(resource_names("reliability", ".yaml"))),
       [](Request& r, const Text& v) { r.failures = v; }},
      {"per-device-hour", "", "price of a device-hour in any currency", amount(&Request::per_device_hour)},
      {"trainings", "1000", "simulated trainings; by default fewer if together they have over 10^6 events",
       [](Request& r, const Text& v) { r.trainings = whole_of(v, 10, 1'000'000); }},
      {"train-seed", "1", "of the simulation",
       [](Request& r, const Text& v) { r.seed = static_cast<unsigned>(whole_of(v, 0, 2'000'000'000)); }},
      {"checkpoints", "async", "none, blocking, async or best (the better of blocking and async)",
       [](Request& r, const Text& v) {
         require_one_of("checkpoints", v, {"none", "blocking", "async", "best"});
         r.checkpoint.method = v;
       }},
      {"checkpoint-to", "storage", "storage, host (memory) or neighbour (memory of the next host)",
       [](Request& r, const Text& v) {
         require_one_of("checkpoint-to", v, {"storage", "host", "neighbour"});
         r.checkpoint.target = v;
       }},
      {"checkpoint-size", "the model's state", "as 2.3TB",
       [](Request& r, const Text& v) { r.checkpoint.size = parse_bytes(v, "--checkpoint-size"); }},
      {"storage-rate", "the cluster's", "of all hosts together, as 100GB/s",
       [](Request& r, const Text& v) { r.checkpoint.storage_rate = parse_bytes_per_second(v, "rate"); }},
      {"checkpoint-stop", "780ms", "async: stop in addition to the copy to host memory",
       [](Request& r, const Text& v) { r.checkpoint.stop = parse_seconds(v, "--checkpoint-stop"); }},
      {"checkpoint-slowdown", "46.9%", "async: fraction of the training's rate lost during a write",
       [](Request& r, const Text& v) { r.checkpoint.slowdown = fraction_of(v); }},
      {"interval", "best", "between checkpoints: best, a number of steps, or a time as 30min",
       [](Request& r, const Text& v) { r.checkpoint.interval = v; }},
      {"recovery", "the failures'", "parts, as detection=1min,diagnosis=2min,scheduling=1min,"
       "initialisation=1min,per_rank=20ms,warm_up=30s; the load of a checkpoint is added",
       [](Request& r, const Text& v) { r.recovery = Specification::parse("recovery", "it:" + v).overrides;
         if (r.recovery.empty()) throw InputError("'{}': expected part=time, as detection=1min", v);
         Recovery all = FailureSet{}.recovery;
         for (const auto& [part, time] : r.recovery) set_part(all, part, time); }},
      {"spares", "always one", "spare hosts",
       [](Request& r, const Text& v) { r.spares = whole_of(v, 0, 1'000'000); }},
      {"repair", "the failures'", "mean time until a failed host returns",
       [](Request& r, const Text& v) { r.repair = parse_seconds(v, "--repair"); }},
      {"elastic", "none", "none, shrink (train with fewer replicas until a repair) or continue (other "
       "replicas go on while one restarts, as fault-tolerant HSDP)",
       [](Request& r, const Text& v) { r.elasticity = value_of(kElasticities, "elasticity", v); }}};
  return kAll;
}
// clang-format on

TrainingRequest training_request(const OptionTexts& options) {
  TrainingRequest request;
  for (const TrainOption& option : train_options()) {
    const auto given = options.find(option.name);
    if (given == options.end()) continue;
    try {
      option.set(request, given->second);
    } catch (const InputError& error) {
      const std::string message = error.what();
      throw UsageError(message.starts_with("--") ? message : "--" + option.name + ": " + message);
    }
  }
  return request;
}

}  // namespace stepcast
