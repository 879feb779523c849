#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <iostream>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "core/environment.hpp"
#include "core/error.hpp"
#include "core/statistics.hpp"
#include "core/table.hpp"
#include "runner/engine/torch_engine.hpp"
#include "sim/strategies/tensor_parallel.hpp"
#include "tests/runner/as_ranks.hpp"
#include "tests/worlds.hpp"

/// Forecast peak memory against the peak that the counting allocator observes, of everything that trains on
/// two ranks, and of experts on more. Each rank is a thread with its own MemoryAccount.
/// STEPCAST_MEMORY_TABLE=1 in the environment prints all cases.

namespace stepcast::memory_law_test {
using namespace worlds;

namespace {

constexpr int kBatch = 4;

const std::string kSizes = "layers=4,hidden=64,heads=4,sequence=64,vocabulary=512";
const std::string kGpt = "gpt:" + kSizes;
const std::string kLlama = "llama:" + kSizes + ",kv_heads=2,feed_forward=192";
const std::string kMoe = "moe:" + kSizes + ",kv_heads=2,feed_forward=96,experts=4,active=2,capacity=125";

/// Every expert has places for all tokens: with fewer, memory depends on the choice of the router.
const std::string kPlaces = "moe:" + kSizes + ",kv_heads=2,feed_forward=96,experts=4,active=2,capacity=200";

/// Both have a shared expert, the first latent attention too.
const std::string kDeepseek =
    "deepseek:layers=4,dense=2,hidden=64,heads=4,q_rank=48,kv_rank=32,nope=12,rope=4,value=16,sequence=64,"
    "vocabulary=512,dense_feed_forward=192,feed_forward=96,experts=4,active=2,capacity=200,sequence_parallel="
    "1";
const std::string kShared = kPlaces + ",shared=96,sequence_parallel=1";

/// One training (of one rank, for the strategy `single`).
struct LawCase {
  std::string strategy;
  std::string model = kGpt;
  int micro_batches = 2;
  OptionTexts options{};
  std::string recompute = "none";
  std::string precision = "fp32";
  int ranks = 2;

  [[nodiscard]] std::string name() const {
    std::string text = strategy + ", " + model.substr(0, model.find(':'));
    for (const auto& [option, value] : options) text += ", " + option + " " + value;
    if (micro_batches != 1) text += ", " + std::to_string(micro_batches) + " micro-batches";
    if (recompute != "none") text += ", recompute " + recompute;
    return precision == "fp32" ? text : text + ", " + precision;
  }
};

struct Outcome {
  LawCase what;
  double forecast = 0.0, observed = 0.0;  ///< bytes, of the rank with the larger error
  std::string rejected{};                 ///< reason, if strategy or runner rejects the combination
  [[nodiscard]] double error() const { return std::abs(std::log(forecast / observed)); }
};

/// Values of an option to try besides its default.
std::vector<std::string> values_of(const StrategyOption& option) {
  switch (option.kind) {
    case OptionKind::kFlag:
      return {"yes"};
    case OptionKind::kNumber:
      return {"1", "2"};
    case OptionKind::kBytes:
      return {"64KiB", "1GiB"};
    case OptionKind::kText:
      break;
  }
  return option.choices;
}

/// Every strategy with every value of each of its options, and combined with meshes, recomputation and
/// precision.
std::vector<LawCase> cases() {
  const std::vector<std::pair<std::string, std::string>> meshes{
      {"tensor=2", kLlama},
      {"tensor=2", kLlama + ",sequence_parallel=1"},
      {"tensor=2", kGpt},
      {"context=2", kLlama},
      {"context=2", kLlama + ",ring=1"},
      {"context=2", kLlama + ",ulysses=1"},
      {"tensor=2", kPlaces + ",sequence_parallel=1"},
      {"tensor=2,expert=2", kPlaces + ",sequence_parallel=1"},
      {"tensor=2", kShared},
      {"tensor=2", kShared + ",gather_again=1"},
      {"tensor=2", kDeepseek},
      {"tensor=2", kDeepseek + ",gather_again=1"},
      {"expert_tensor=2", kPlaces},
      {"expert=2", kMoe}};
  std::vector<LawCase> all;
  for (const auto& entry : strategies().entries()) {
    if (!entry.value.trains) continue;
    const std::string& strategy = entry.name;
    for (const int micro_batches : {1, 2, 4})
      all.push_back({.strategy = strategy, .micro_batches = micro_batches});
    for (const StrategyOption& option : options_of(strategy))
      for (const std::string& value : values_of(option))
        if (value != option.standard)
          all.push_back({.strategy = strategy, .options = {{option.name, value}}});
    for (const auto& [mesh, model] : meshes)
      all.push_back({.strategy = strategy, .model = model, .options = {{kMeshOption, mesh}}});
    for (const std::string recompute : {"full", "every:2", "selective"})
      all.push_back({.strategy = strategy, .recompute = recompute});
    for (const std::string precision : {"bf16", "bf16,reduction=bf16"})
      all.push_back({.strategy = strategy, .precision = precision});
    all.push_back({.strategy = strategy, .model = "simple-cnn"});
    for (const std::string precision : {"fp32", "bf16"})
      all.push_back({.strategy = strategy, .model = kLlama + ",muon=1", .precision = precision});
    all.push_back({.strategy = strategy, .model = kLlama + ",lora=4"});
  }
  for (const char* precision : {"fp32", "bf16"})
    all.push_back({.strategy = "fsdp", .model = kLlama + ",frozen=2", .precision = precision});
  for (const char* recompute : {"full", "selective"})
    all.push_back({.strategy = "ddp", .model = kGpt + ",frozen=2", .recompute = recompute});
  all.push_back({.strategy = "pipeline", .model = kGpt + ",frozen=1", .options = {{"schedule", "zb-h1"}}});
  all.push_back(
      {.strategy = "fsdp", .model = kGpt + ",frozen=2", .options = {{"sharding", "shard_grad_op"}}});
  all.push_back({.strategy = "ddp", .model = kLlama + ",lora=4,lora_linear=0"});
  all.push_back({.strategy = "ddp", .micro_batches = 4, .options = {{"zero", "2"}, {"accumulate", "every"}}});
  for (const char* zero : {"1", "2"})
    all.push_back({.strategy = "ddp",
                   .micro_batches = 2,
                   .options = {{"zero", zero}, {"reduce-by", "all-reduce"}, {"reduce-when", "waited"}}});
  all.push_back({.strategy = "ddp", .model = kPlaces, .options = {{"zero", "1"}, {kMeshOption, "expert=2"}}});
  all.push_back({.strategy = "pipeline", .options = {{"schedule", "interleaved"}, {"virtual-stages", "2"}}});
  const std::string tensors = kPlaces + ",sequence_parallel=1";
  const auto add = [&all](const char* strategy, const std::string& model, const char* mesh, int ranks) {
    all.push_back({.strategy = strategy, .model = model, .options = {{kMeshOption, mesh}}, .ranks = ranks});
  };
  add("fsdp", kPlaces, "data=2,shard=2,expert=2", 4);
  add("fsdp", kPlaces, "shard=4,expert=2,expert_tensor=2", 4);
  add("ddp", kPlaces, "data=2,context=2,expert=4", 4);
  add("pipeline", kPlaces, "pipeline=2,shard=4,expert=2", 8);
  add("pipeline", kPlaces, "pipeline=2,data=2,shard=2,expert=2", 8);
  add("pipeline", tensors, "pipeline=2,data=2,tensor=2,expert=4", 8);
  return all;
}

/// Step of one rank's part of the model, traced once per model and micro-batch.
const TraceEntry& traced(const Model& model, int samples) {
  static std::map<std::tuple<std::string, std::string, RecomputedPart, int>, Trace> known;
  const auto [found, is_new] =
      known.try_emplace({model.specification, to_text(model.precision), model.recomputed_part, samples});
  if (is_new) {
    MeasureOptions options;
    options.batches = {samples};
    options.steps = options.warmup_steps = 1;
    options.budget_s = 0.0;
    options.precision = model.precision;
    found->second = measure_trace(model, options);
  }
  return found->second.entries.front();
}

std::vector<double> forecast(const Model& model, const Schedule& schedule, int batch) {
  const Cluster cluster = star(schedule.world_size, 1e9, 1e-6);
  ReplayInput input = input_of(schedule, model, cluster);
  const PhaseCosts costs = traced_costs(model, traced(model, batch / schedule.micro_batches));
  input.compute.batch = batch;
  input.compute.phases = &costs;
  std::vector<double> peaks;
  for (const MemoryUse& use : replay(input).memory) peaks.push_back(use.peak_bytes);
  return peaks;
}

/// Observed peaks. A send keeps its array until the receiver takes it, which a busy machine delays: with
/// messages the smallest of five observations of each rank counts.
std::vector<double> observe(const Model& model, const Schedule& schedule, int batch) {
  const int count = has_action<Send>(schedule) ? 5 : 1;
  std::vector<double> peaks(schedule.world_size, std::numeric_limits<double>::infinity());
  as_sessions(schedule.world_size, [&](RankSession& session) {
    RunOptions options;
    options.batch = batch;
    options.steps = options.warmup_steps = 1;
    options.precision = model.precision;
    for (int i = 0; i < count; ++i) {
      const Result result = run_schedule(model, schedule, session, options);
      if (session.ranks.rank != 0) continue;
      for (std::size_t rank = 0; rank < peaks.size(); ++rank)
        peaks[rank] = std::min(peaks[rank], result.memory[rank].peak_bytes);
    }
  });
  return peaks;
}

bool trains(const Schedule& schedule) {
  return computes(schedule.program(0), Phase::kBackward) ||
         computes(schedule.program(0), Phase::kBackwardWeight);
}

Outcome outcome_of(const LawCase& one) {
  Outcome outcome{.what = one};
  const Recomputation recomputation = parse_recompute(one.recompute);
  TrainingConfig config = training(ranks_of(one.strategy, one.ranks), kBatch, one.options, one.micro_batches);
  config.recompute = recomputation;
  try {
    take_mesh(one.strategy, config);
    const Model model =
        in_precision(recomputing(load_model(shared_by(one.model, config.mesh)), recomputation.part),
                     Precision::parse(one.precision), false);
    const Schedule schedule = build_schedule(one.strategy, model, config);
    if (!trains(schedule)) throw UsageError("the Schedule has no backward");
    const std::vector<double> observed = observe(model, schedule, kBatch);
    const std::vector<double> expected = forecast(model, schedule, kBatch);
    for (std::size_t rank = 0; rank < observed.size(); ++rank) {
      const Outcome own{one, expected.at(rank), observed[rank]};
      if (rank == 0 || own.error() > outcome.error()) outcome = own;
    }
  } catch (const UsageError& error) {
    outcome.rejected = error.what();
  } catch (const CapabilityError& error) {
    outcome.rejected = error.what();
  }
  return outcome;
}

std::string table_of(const std::vector<Outcome>& outcomes) {
  Table table({"case", "forecast", "observed", "error"});
  std::string rejected;
  for (const Outcome& one : outcomes)
    if (one.rejected.empty())
      table.add({one.what.name(), std::to_string(std::llround(one.forecast)),
                 std::to_string(std::llround(one.observed)), std::to_string(100.0 * one.error()) + " %"});
    else
      rejected += "rejected: " + one.what.name() + ": " + one.rejected + "\n";
  return table.text() + rejected;
}

}  // namespace

TEST_CASE("forecast peak memory is within 0.5 % of the observed peak for all that trains") {
  std::vector<Outcome> outcomes;
  std::vector<double> errors;
  std::map<std::string, int> by_strategy;
  for (const LawCase& one : cases()) {
    outcomes.push_back(outcome_of(one));
    if (!outcomes.back().rejected.empty()) continue;
    errors.push_back(outcomes.back().error());
    ++by_strategy[one.strategy];
    INFO(one.name() << ": forecast " << outcomes.back().forecast << " B, observed "
                    << outcomes.back().observed << " B");
    CHECK(errors.back() <= 0.005);
  }
  if (process_environment("STEPCAST_MEMORY_TABLE")) std::cout << table_of(outcomes);
  CHECK(median(errors) <= 0.0005);
  for (const auto& entry : strategies().entries())
    if (entry.value.trains) CHECK(by_strategy[entry.name] >= 5);
}

}  // namespace stepcast::memory_law_test
