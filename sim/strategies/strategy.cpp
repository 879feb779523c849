#include "sim/strategies/strategy.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <set>
#include <utility>

#include "core/error.hpp"
#include "core/number.hpp"
#include "core/ranges.hpp"
#include "core/table.hpp"
#include "core/yaml.hpp"
#include "sim/strategies/pipeline_layout.hpp"
#include "sim/strategies/tensor_parallel.hpp"

namespace stepcast {

namespace {

/// Values of --recompute with a number of blocks.
constexpr std::array<std::pair<const char*, int Recomputation::*>, 3> kBlocks{
    {{"every:", &Recomputation::blocks}, {"first:", &Recomputation::first}, {"each:", &Recomputation::each}}};

StrategyOption read_option(const std::string& name, const YamlNode& node) {
  constexpr double kMostOfAHost = 1024.0 * kGibi;
  static const std::map<std::string, OptionKind> kKinds{
      {"number", OptionKind::kNumber}, {"bytes", OptionKind::kBytes}, {"flag", OptionKind::kFlag}};
  node.allow_only({"strategies", "type", "choices", "default", "least", "follows", "help"});
  StrategyOption option{.name = name, .help = node.at("help").text()};
  if (node.has("type")) option.kind = node.at("type").named("type", kKinds);
  option.choices = transformed(node.items("choices"), &YamlNode::text);
  option.standard = option.kind == OptionKind::kFlag ? "no"
                    : option.choices.empty()         ? node.at("default").text()
                                                     : option.choices.front();
  if (node.has("least")) option.least = node.at("least").number();
  if (option.kind == OptionKind::kBytes) option.most = kMostOfAHost;
  option.follows = node.text_or("follows", "");
  return option;
}

/// The resolved mesh; the loaded model has its own part of it.
Mesh mesh_of_ranks(const Strategy& strategy, const Model& model, const TrainingConfig& config) {
  Mesh mesh = config.mesh;
  for (const auto& [dimension, size] : model.parallel.degrees()) {
    if (size > 1)
      mesh.set(dimension, size);
    else if (mesh.size(dimension) > 1)
      throw UsageError("--mesh {}: '{}' has no effect with '{}', no layer of which it divides",
                       config.mesh.text(), dimension, model.specification);
  }
  return mesh.resolved(config.world_size, strategy.open);
}

/// \throws UsageError for sizes and settings without meaning
void check(const std::string& strategy, const Model& model, const TrainingConfig& config) {
  const auto check_size = [](const char* what, int value) {
    if (value < 1) throw UsageError("{} must be at least 1, found {}", what, value);
  };
  check_size("world size", config.world_size);
  check_size("batch", config.batch);
  check_size("micro-batches", config.micro_batches);
  if (config.batch % config.micro_batches != 0)
    throw UsageError("--micro-batches {} do not divide the batch of {} samples; possible are {}",
                     config.micro_batches, config.batch, joined(divisors(config.batch)));
  if (strategy == "gather_scatter" && model.parallel.expert_ranks() > 1 && model.parallel.tensor > 1)
    throw UsageError("--mesh: gather_scatter supports expert without tensor; use ddp, fsdp or pipeline");
  if (const Precision& precision = model.precision;
      (strategy == "gather_scatter" || strategy == "all_reduce") &&
      config.world_size > model.parallel.tensor &&
      std::min(bytes_of(precision.gradients), 4.0) != bytes_of(precision.reduction))
    throw UsageError("--precision: {} sends gradients as they are, in {}, not in {}; take {},reduction={}",
                     strategy, precision.gradients, precision.reduction, to_text(precision),
                     precision.gradients);
  if (const int blocks = static_cast<int>(blocks_of(model).size());
      std::max({1, config.recompute.blocks, config.recompute.each}) > std::max(1, blocks))
    throw UsageError("--recompute {} has no effect: '{}' has {} blocks", to_text(config.recompute),
                     model.specification, blocks);
  if (config.recompute != Recomputation{} && !strategies().find(strategy).trains)
    throw UsageError("--recompute has no effect with strategy '{}', which trains no model", strategy);
  if (config.offload != Offload{} && !strategies().find(strategy).trains)
    throw UsageError("--offload has no effect with strategy '{}', which trains no model", strategy);
  if (config.offload.parameters && strategy != "fsdp")
    throw UsageError("--offload parameters requires --strategy fsdp; {} takes activations and optimizer",
                     strategy);
}

/// Adds what a rank holds of all its parameters at once during the update: the square roots of Adam's second
/// moments with `--update foreach` (torch/optim/adam.py, _multi_tensor_adam), and Megatron's copies in fp32
/// of gradients in 16 bit for masters in fp32 (megatron/core/optimizer/{distrib_optimizer,optimizer}.py).
void add_update_arrays(Schedule& schedule, const Model& model) {
  const double state = bytes_of(model.precision.optimizer), master = bytes_of(model.precision.master);
  const bool two_states = model.optimizer.states() == 2 && !model.optimizer.muon;
  const bool copies =
      model.transformer_engine() && master == 4.0 && bytes_of(model.precision.gradients) == 2.0;
  if (!two_states || (model.execution.update != "foreach" && !copies)) return;
  const double each = (model.execution.update == "foreach" ? state : 0.0) + (copies ? 4.0 : 0.0);
  for (Program& program : schedule.programs) {
    std::vector<Op*> updates;
    for (Op& op : program.ops)
      if (const auto* compute = std::get_if<Compute>(&op.action);
          compute != nullptr ? compute->phase == Phase::kOptimizer
                             : std::holds_alternative<UpdateUnit>(op.action))
        updates.push_back(&op);
    if (updates.empty()) continue;
    MemoryChange arrays{.category = MemoryCategory::kOptimizerState,
                        .term = copies ? "gradients in fp32 for the update" : "square roots"};
    for (const MemoryChange& held : program.resident)
      if (held.category == arrays.category) arrays.size += each / (master + 2.0 * state) * held.size;
    updates.front()->memory.push_back(arrays);
    arrays.size = -1.0 * arrays.size;
    arrays.at_end = true;
    updates.back()->memory.push_back(arrays);
  }
}

}  // namespace

Registry<Strategy>& strategies() {
  static Registry<Strategy> registry("strategy");
  return registry;
}

Mesh mesh_of(const std::string& strategy, const std::string& text) {
  const Strategy& found = strategies().find(strategy);
  if (!found.trains)
    throw UsageError("--mesh has no effect with strategy '{}', which trains no model", strategy);
  Mesh mesh = Mesh::parse(text);
  const auto supports = [](const Strategy& one, const std::string& dimension) {
    return one.trains && contains(one.dimensions, dimension);
  };
  for (const auto& [dimension, size] : mesh.dimensions()) {
    if (supports(found, dimension)) continue;
    std::vector<std::string> takers;
    for (const auto& entry : strategies().entries())
      if (supports(entry.value, dimension)) takers.push_back(entry.name);
    throw UsageError("--mesh {}: '{}' needs --strategy {}; {} has {}", text, dimension, alternatives(takers),
                     strategy, joined(found.dimensions));
  }
  if (found.open.front() == "shard" && mesh.has("data") && !mesh.has("shard"))
    throw UsageError("--mesh {}: {} with data=N also needs shard=N, the ranks of each replica", text,
                     strategy);
  return mesh;
}

void take_mesh(const std::string& strategy, TrainingConfig& config) {
  if (const auto given = config.options.extract(kMeshOption); !given.empty())
    config.mesh = mesh_of(strategy, given.mapped());
}

bool is_default(const std::string& strategy, const Mesh& resolved) {
  const std::string& open = strategies().find(strategy).open.front();
  return std::ranges::all_of(resolved.dimensions(),
                             [&](const auto& one) { return one.second == 1 || one.first == open; });
}

const std::vector<StrategyOption>& options_of(const std::string& strategy) {
  static const auto kAll = [] {
    std::map<std::string, std::vector<StrategyOption>> all;
    for (const auto& entry : strategies().entries()) all[entry.name] = entry.value.options;
    for (const auto& [name, node] : entries_of(YamlNode::shipped("commands/strategies.yaml")))
      for (const YamlNode& owner : node.at("strategies").items())
        all[owner.text()].push_back(read_option(name, node));
    return all;
  }();
  static_cast<void>(strategies().find(strategy));  // or its error
  return kAll.at(strategy);
}

std::vector<KnownOption> known_options() {
  std::vector<KnownOption> all{
      KnownOption{{.name = kMeshOption,
                   .help = "ranks per dimension, those of the last one adjacent, as data=4,tensor=2, "
                           "shard=4,context=2,expert=2 or pipeline=2,data=4; default: all in one"},
                  {}}};
  for (const auto& entry : strategies().entries())
    for (const StrategyOption& option : options_of(entry.name)) {
      auto known = std::ranges::find_if(
          all, [&](const KnownOption& other) { return other.option.name == option.name; });
      if (known == all.end()) known = all.insert(all.end(), {option, {}});
      known->strategies.push_back(entry.name);
    }
  for (const auto& entry : strategies().entries())
    if (entry.value.trains) all.front().strategies.push_back(entry.name);
  return all;
}

StrategyOptions resolve_options(const std::string& strategy, const OptionTexts& given) {
  const std::vector<StrategyOption>& own = options_of(strategy);
  for (const auto& [name, value] : given) {
    const auto is_named = [&name = name](const auto& option) { return option.name == name; };
    if (std::ranges::any_of(own, is_named)) continue;
    std::vector<std::string> names;
    for (const KnownOption& known : known_options()) {
      names.push_back("--" + known.option.name);
      if (known.option.name != name) continue;
      throw UsageError("--{} has no effect with strategy '{}'; {}{}", name, strategy,
                       joined(known.strategies, " and "),
                       known.strategies.size() == 1 ? " takes it" : " take it");
    }
    throw UsageError(unknown_choice("option", "--" + name, names));
  }
  return {own, given};
}

Schedule build_schedule(const std::string& strategy, const Model& model, const TrainingConfig& config) {
  const Strategy& found = strategies().find(strategy);
  check(strategy, model, config);
  StrategyOptions options = resolve_options(strategy, config.options);
  TrainingConfig part = config;
  part.mesh = mesh_of_ranks(found, model, config);
  part.world_size = config.world_size / model.parallel.tensor;
  Schedule schedule = found.build(model, part, options);
  add_update_arrays(schedule, model);
  const auto has_parts = [](const FsdpUnit& unit) { return unit.sharded && !unit.alone(); };
  if (model.optimizer.muon &&
      (config.offload.optimizer > 0.0 || std::ranges::any_of(schedule.units, has_parts)))
    throw UsageError(
        "{}: muon=1 updates whole weights, but shards and a host hold parts of arrays; take ddp or pipeline "
        "with --zero 0 or whole and without a mesh's shard, or fsdp with --sharding no_shard, and leave "
        "--offload optimizer out",
        model.specification);
  if (std::ranges::any_of(model.parallel.degrees(), [](const auto& one) { return one.second > 1; }))
    schedule = share_layers(std::move(schedule), model, config.batch);
  arrange(schedule, part.mesh);
  schedule.options = options.resolved();
  schedule.label = strategy;
  if (!is_default(strategy, part.mesh)) {
    schedule.options[kMeshOption] = part.mesh.text();
    schedule.label += ", mesh " + part.mesh.text();
  }
  for (const std::string& text : options.changed()) schedule.label += ", " + text;
  const auto add = [&](const std::string& name, const std::string& value) {
    schedule.options[name] = value;
    schedule.label += ", " + name + " " + value;
  };
  Recomputation recomputation = config.recompute;
  recomputation.part = model.recomputed_part;
  if (recomputation != Recomputation{}) add("recompute", to_text(recomputation));
  if (config.offload != Offload{}) add("offload", to_text(config.offload));
  if (model.precision != Precision{}) add("precision", to_text(model.precision));
  if (model.input.documents > 0) add("documents", std::to_string(model.input.documents));
  for (const ExecutionOption& option : execution_options())
    if (const std::string& value = model.execution.*option.member; value != Execution().*option.member)
      add(option.name, value);
  validate(schedule);
  return schedule;
}

std::string options_without_effect(const std::vector<std::string>& names, const TrainingConfig& training,
                                   const Execution& execution,
                                   const std::map<CollectiveKind, std::string>& algorithms,
                                   const Schedule& schedule) {
  std::vector<std::string> found;
  const auto add = [&](const std::string& option, const std::string& value) {
    if (contains(names, option)) found.push_back("--" + option + " " + value);
  };
  const bool forward_only = value_or(schedule.options, "forward-only", "no") == "yes";
  const bool one_stage = schedule.strategy == "pipeline" && schedule.programs.size() == 1;
  const std::map<std::string, bool> rules{{"forward-prefetch", schedule.units.size() == 1},
                                          {"backward-prefetch", schedule.units.size() == 1},
                                          {"limit-all-gathers", schedule.units.size() == 1},
                                          {"messages", one_stage},
                                          {"update", forward_only},
                                          {"gradient-passes", forward_only},
                                          {"recomputed", training.recompute.blocks == 0}};
  for (const KnownOption& known : known_options()) {
    const auto given = training.options.find(known.option.name);
    if (given == training.options.end() || given->first == "framework") continue;  // sets first-bucket-cap
    const std::string value = known.option.canonical(given->second);
    const std::string used = value_or(schedule.options, given->first, known.option.standard);
    const bool same_order = given->first == "schedule" && value == "gpipe" && schedule.micro_batches == 1;
    if (value != known.option.standard &&
        (used == known.option.standard || same_order || value_or(rules, given->first, false)))
      add(given->first, value);
  }
  for (const ExecutionOption& option : execution_options())
    if (const std::string& value = execution.*option.member;
        value != Execution().*option.member && value_or(rules, option.name, false))
      add(option.name, value);
  std::set<CollectiveKind> kinds;
  for (const Program& program : schedule.programs)
    for (const Op& op : program.ops)
      if (const auto* call = std::get_if<Collective>(&op.action)) kinds.insert(call->kind);
  for (const auto& [kind, algorithm] : algorithms)
    if (!kinds.contains(kind))
      add("algorithm", std::string(row_of(kCollectiveKinds, kind).name) + "=" + algorithm);
  return found.empty() ? "" : joined(found) + ": nothing in this step depends on it; leave it out";
}

Recomputation parse_recompute(const std::string& text) {
  if (text == "full") return {.blocks = 1};
  if (const auto part = recomputed_part(text)) return {.part = *part};
  for (const auto& [prefix, member] : kBlocks)
    if (text.starts_with(prefix))
      if (const auto blocks = positive_number(text.substr(std::strlen(prefix)))) {
        Recomputation result{.blocks = 1};
        result.*member = *blocks;
        return result;
      }
  throw UsageError(
      "--recompute {}: must be none, full, every:N, which keeps the input of every Nth block, first:N (the "
      "first N blocks of a stage), each:N (every Nth block alone), selective, per-op, or modules joined by "
      "+: {}",
      text, joined(recomputed_modules()));
}

std::string to_text(const Recomputation& recomputation) {
  if (recomputation.blocks == 0) return to_text(recomputation.part);
  for (const auto& [prefix, member] : kBlocks)
    if (const int blocks = recomputation.*member; blocks != Recomputation{.blocks = 1}.*member)
      return prefix + std::to_string(blocks);
  return "full";
}

TrainingConfig training_config(const OptionTexts& options) {
  const auto strategy = options.find("strategy");
  if (strategy == options.end()) throw UsageError("--strategy is missing; see --help");
  if (!strategies().has(strategy->second))
    throw UsageError(unknown_choice("strategy", strategy->second, strategies().names()));
  TrainingConfig config;
  if (const auto parts = options.find("micro-batches"); parts != options.end()) {
    const auto count = number_in<int>(parts->second);
    if (!count || *count < 1) throw UsageError("--micro-batches must be at least 1, got " + parts->second);
    config.micro_batches = *count;
  }
  if (const auto text = options.find("recompute"); text != options.end())
    config.recompute = parse_recompute(text->second);
  if (const auto text = options.find("offload"); text != options.end())
    config.offload = parse_offload(text->second);
  for (const KnownOption& known : known_options())
    if (const auto given = options.find(known.option.name); given != options.end())
      config.options.insert(*given);
  take_mesh(strategy->second, config);
  static_cast<void>(resolve_options(strategy->second, config.options));
  return config;
}

}  // namespace stepcast
