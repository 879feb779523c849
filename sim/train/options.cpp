#include <algorithm>
#include <cmath>

#include "core/expression.hpp"
#include "core/file.hpp"
#include "core/number.hpp"
#include "core/ranges.hpp"
#include "core/table.hpp"
#include "sim/strategies/strategy.hpp"
#include "sim/train/training.hpp"

namespace stepcast {
namespace {

using Request = TrainingRequest;
using Text = std::string;

double fraction_of(const Text& text) {
  if (const auto ratio = percentage_in(text); ratio && *ratio < 1.0) return *ratio;
  throw InputError("'{}' is not a percentage from 0% to below 100%; write for example 10%", text);
}

auto positive(auto value, const Text& text) {
  if (value > decltype(value)(0)) return value;
  throw InputError("'{}': must be above 0", text);
}

auto word(const char* option, Text CheckpointRequest::*member, const std::vector<Text>& allowed) {
  return [=](Request& r, const Text& v) {
    require_one_of(option, v, allowed);
    r.checkpoint.*member = v;
  };
}

/// Number of `15T`, `300B`, `95k` or `2000`, decimal.
double parse_amount(const std::string& text) {
  static const std::map<std::string, double> kUnits{
      {"", 1.0}, {"k", 1e3}, {"M", 1e6}, {"B", 1e9}, {"T", 1e12}};
  const auto given = number_with_unit(text);
  const double amount = given ? given->number * value_or(kUnits, given->unit, 0.0) : 0.0;
  if (!(amount > 0.0 && amount < 1e18))
    throw InputError("'{}' is not a number above 0; write for example 15T, 300B, 95k or 2000", text);
  return amount;
}

auto amount(double Request::*member) {
  return [member](Request& r, const Text& v) { r.*member = parse_amount(v); };
}

}  // namespace

const std::vector<TrainOption>& train_options() {
  static const std::vector<TrainOption> kAll{
      {"tokens", amount(&Request::tokens)},
      {"steps", amount(&Request::steps), true},
      {"epochs", amount(&Request::epochs)},
      {"epoch-samples", amount(&Request::epoch_samples)},
      {"failures", [](Request& r, const Text& v) { r.failures = v; }},
      {"per-device-hour", amount(&Request::per_device_hour), true},
      {"trainings",
       [](Request& r, const Text& v) { r.trainings = whole_number("trainings", v, 10, 1'000'000); }, false,
       true},
      {"train-seed",
       [](Request& r, const Text& v) {
         r.seed = static_cast<unsigned>(whole_number("train-seed", v, 0, 2'000'000'000));
       },
       false, true},
      {"checkpoints", word("checkpoints", &CheckpointRequest::method, {"none", "blocking", "async", "best"})},
      {"checkpoint-to", word("checkpoint-to", &CheckpointRequest::target, {"storage", "host", "neighbour"})},
      {"checkpoint-size",
       [](Request& r, const Text& v) {
         r.checkpoint.size = positive(parse_bytes(v, "--checkpoint-size"), v);
       }},
      {"storage-rate",
       [](Request& r, const Text& v) {
         r.checkpoint.storage_rate = positive(parse_bytes_per_second(v, "rate"), v);
       }},
      {"checkpoint-stop",
       [](Request& r, const Text& v) { r.checkpoint.stop = parse_seconds(v, "--checkpoint-stop"); }},
      {"checkpoint-slowdown", [](Request& r, const Text& v) { r.checkpoint.slowdown = fraction_of(v); }},
      {"interval", [](Request& r, const Text& v) { r.checkpoint.interval = v; }},
      {"recovery",
       [](Request& r, const Text& v) {
         r.recovery = Specification::parse("recovery", "it:" + v).overrides;
         if (r.recovery.empty()) throw InputError("'{}': expected part=time, as detection=1min", v);
         Recovery all = FailureSet{}.recovery;
         for (const auto& [part, time] : r.recovery) set_part(all, part, time);
       }},
      {"spares", [](Request& r, const Text& v) { r.spares = whole_number("spares", v, 0, 1'000'000); }},
      {"repair", [](Request& r, const Text& v) { r.repair = parse_seconds(v, "--repair"); }},
      {"elastic", [](Request& r, const Text& v) { r.elasticity = value_of(kElasticities, "elasticity", v); },
       false, true}};
  return kAll;
}

TrainingRequest training_request(const OptionTexts& options) {
  TrainingRequest request;
  for (const TrainOption& option : train_options()) {
    const auto given = options.find(option.name);
    if (given == options.end()) continue;
    parsed_option(option.name, [&] { option.set(request, given->second); });
  }
  const auto refuse = [&](bool when, std::initializer_list<const char*> names, const char* why) {
    for (const char* name : names)
      if (when && options.contains(name)) throw UsageError("--{} has no effect {}", name, why);
  };
  const bool blocking = request.checkpoint.method == "blocking";
  refuse(request.epochs <= 0.0, {"epoch-samples"}, "without --epochs");
  refuse(request.spares < 0, {"repair"}, "without --spares");
  refuse(request.spares < 0 && request.elasticity == Elasticity::kShrink, {"elastic"},
         "as shrink without --spares: a spare host is always ready");
  refuse(request.checkpoint.method == "none",
         {"interval", "checkpoint-to", "checkpoint-size", "storage-rate", "checkpoint-stop",
          "checkpoint-slowdown"},
         "with --checkpoints none");
  refuse(blocking, {"checkpoint-stop"}, "with --checkpoints blocking");
  refuse(blocking && request.checkpoint.target == "storage", {"checkpoint-slowdown"},
         "with --checkpoints blocking to the storage");
  return request;
}

}  // namespace stepcast
