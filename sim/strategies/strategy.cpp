#include "sim/strategies/strategy.hpp"

#include <algorithm>
#include <stdexcept>

#include "core/error.hpp"
#include "sim/strategies/tensor_parallel.hpp"

namespace stepcast {

namespace {

std::string divisors(int number) {
  std::string text;
  for (int i = 1; i <= number; ++i)
    if (number % i == 0) text += (text.empty() ? "" : ", ") + std::to_string(i);
  return text;
}

}  // namespace

Registry<Strategy>& strategies() {
  static Registry<Strategy> registry("strategy");
  return registry;
}

std::vector<KnownOption> known_options() {
  std::vector<KnownOption> all;
  for (const auto& entry : strategies().entries())
    for (const StrategyOption& option : entry.value.options) {
      auto known = std::ranges::find_if(
          all, [&](const KnownOption& other) { return other.option.name == option.name; });
      if (known == all.end()) known = all.insert(all.end(), {option, {}});
      if (known->option != option)
        throw std::logic_error("strategies '" + known->strategies.front() + "' and '" + entry.name +
                               "' declare --" + option.name + " differently");
      known->strategies.push_back(entry.name);
    }
  const auto mesh =
      std::ranges::find_if(all, [](const KnownOption& one) { return one.option.name == kMeshOption; });
  mesh->strategies.clear();
  for (const auto& entry : strategies().entries())
    if (entry.value.trains) mesh->strategies.push_back(entry.name);
  return all;
}

StrategyOptions resolve_options(const std::string& strategy, const OptionTexts& given) {
  const std::vector<StrategyOption>& own = strategies().find(strategy).options;
  for (const auto& [name, value] : given) {
    const auto is_named = [&name = name](const auto& option) { return option.name == name; };
    if (std::ranges::any_of(own, is_named)) continue;
    std::vector<std::string> names;
    for (const KnownOption& known : known_options()) {
      names.push_back("--" + known.option.name);
      if (known.option.name != name) continue;
      std::string takers;
      for (const std::string& taker : known.strategies) takers += (takers.empty() ? "" : " and ") + taker;
      throw UsageError("--{} has no effect with strategy '{}'; {}{}", name, strategy, takers,
                       known.strategies.size() == 1 ? " takes it" : " take it");
    }
    throw UsageError(unknown_name("option", "--" + name, names));
  }
  return {own, given};
}

Schedule build_schedule(const std::string& strategy, const Model& model, const TrainingConfig& config) {
  const Strategy& found = strategies().find(strategy);
  const auto check = [](const char* what, int value) {
    if (value < 1) throw UsageError("{} must be at least 1, found {}", what, value);
  };
  check("world size", config.world_size);
  check("batch", config.batch);
  check("micro-batches", config.micro_batches);
  if (config.batch % config.micro_batches != 0)
    throw UsageError("--micro-batches {} do not divide the batch of {} samples; possible are {}",
                     config.micro_batches, config.batch, divisors(config.batch));
  const long long together = 1LL * model.parallel.tensor * model.parallel.context;
  const bool share = together * model.parallel.expert > 1;
  if (config.data > 0 && config.data * together != config.world_size)
    throw UsageError("--mesh: {} x {} ranks are not the world size of {}", config.data, together,
                     config.world_size);
  if (config.world_size % model.parallel.tensor != 0)
    throw UsageError("world size {} cannot be divided among the {} ranks that share each part of {}",
                     config.world_size, model.parallel.tensor, model.specification);
  if (config.world_size % model.parallel.expert != 0)
    throw UsageError("expert {} does not divide the {} ranks", model.parallel.expert, config.world_size);
  if (strategy == "gather_scatter" && model.parallel.expert > 1 && model.parallel.tensor > 1)
    throw UsageError("--mesh: gather_scatter supports expert without tensor; use ddp, fsdp or pipeline");
  const Recomputation recomputation{config.recompute, model.recomputed_part};
  if ((config.recompute > 0 || config.recomputed_part != RecomputedPart::kNothing) && !found.trains)
    throw UsageError("--recompute has no effect with strategy '{}', which trains no model", strategy);
  StrategyOptions options = resolve_options(strategy, config.options);
  TrainingConfig part = config;
  part.world_size = config.world_size / model.parallel.tensor;
  part.shard = config.shard * model.parallel.context;
  Schedule schedule = found.build(model, part, options);
  if (share) schedule = share_layers(schedule, model, config.batch);
  schedule.options = options.resolved();
  schedule.label = strategy;
  for (const std::string& text : options.changed()) schedule.label += ", " + text;
  if (config.shard > 0) {
    schedule.options["shard"] = std::to_string(config.shard);
    schedule.label += ", shard " + std::to_string(config.shard);
  }
  if (recomputation != Recomputation{}) {
    schedule.options["recompute"] = to_text(recomputation);
    schedule.label += ", recompute " + to_text(recomputation);
  }
  if (model.precision != Precision{}) {
    schedule.options["precision"] = to_text(model.precision);
    schedule.label += ", precision " + to_text(model.precision);
  }
  validate(schedule);
  return schedule;
}

Recomputation parse_recompute(const std::string& text) {
  const std::string every = "every:";
  if (text == "none") return {};
  if (text == "full") return {.blocks = 1};
  if (text == "selective") return {.part = RecomputedPart::kCoreAttention};
  if (text == "per-op") return {.part = RecomputedPart::kOperations};
  if (text.starts_with(every))
    if (const auto blocks = positive_number(text.substr(every.size()))) return {.blocks = *blocks};
  throw UsageError(
      "--recompute {}: must be none, full, every:N, which keeps the input of every Nth block, selective or "
      "per-op",
      text);
}

std::string to_text(const Recomputation& recomputation) {
  const int blocks = recomputation.blocks;
  if (blocks == 0) return to_text(recomputation.part);
  return blocks == 1 ? "full" : "every:" + std::to_string(blocks);
}

void require_one_of(const std::string& option, const std::string& value,
                    const std::vector<std::string>& known) {
  if (std::ranges::find(known, value) == known.end())
    throw UsageError("--{}: {}", option, unknown_name(option, value, known));
}

}  // namespace stepcast
