#include <torch/torch.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <string>
#include <vector>

#include "runner/torch/data.hpp"
#include "runner/torch/engine.hpp"
#include "runner/torch/torch_model.hpp"
#include "sim/strategies/strategy.hpp"
#include "tests/runner/as_ranks.hpp"

/// Ranks that share a model's layers against whole-graph training of the whole model in one process.

namespace stepcast::tensor_parallel_test {

namespace {

constexpr unsigned kSeed = 3;
constexpr int kSteps = 5;
constexpr int kSamples = 8;

const std::string kLlama =
    "llama:layers=2,hidden=16,heads=4,kv_heads=2,sequence=8,vocabulary=40,feed_forward=24,norms=1";
const std::string kGpt = "gpt:layers=2,hidden=16,heads=4,sequence=8,vocabulary=40";

Model with_sgd(const std::string& specification) {
  Model model = load_model(specification);
  model.optimizer = {"sgd", 0.05, 0.9, 1e-3};
  return model;
}

std::vector<torch::Tensor> train_natively(const Model& model) {
  const torch::NoGradGuard no_grad;
  TorchModel net(model, torch::kFloat64, kSeed);
  const Dataset data = Dataset::synthetic(model, kSeed);
  for (int step = 0; step < kSteps; ++step) {
    const Batch joint = data.batch(step, 0, 1, kSamples, torch::kFloat64);
    net.zero_grad();
    {
      const torch::AutoGradMode enabled(true);
      net.loss(net.forward(joint.input), joint.target).backward();
    }
    net.optimizer_step();
  }
  return net.parameters();
}

/// Trains and compares every parameter that a rank holds in the end with its part of the expected one.
void check_training(const std::string& whole, const std::string& settings, const std::string& strategy,
                    int ranks, int batch, const OptionTexts& options = {}, int micro_batches = 1) {
  INFO(whole << settings << " " << strategy << " on " << ranks);
  const std::vector<torch::Tensor> expected = train_natively(with_sgd(whole));
  const Model model = with_sgd(whole + settings);
  TrainingConfig config;
  config.world_size = ranks;
  config.batch = batch;
  config.micro_batches = micro_batches;
  config.options = options;
  const Schedule schedule = build_schedule(strategy, model, config);
  std::vector<std::vector<std::vector<double>>> states(static_cast<std::size_t>(ranks));
  std::vector<double> losses(static_cast<std::size_t>(ranks));
  as_sessions(ranks, [&](RankSession& session) {
    RunOptions run;
    run.batch = batch;
    run.steps = kSteps;
    run.warmup_steps = 0;
    run.seed = kSeed;
    run.float64 = true;
    FinalState state;
    static_cast<void>(run_schedule(model, schedule, session, run, &state));
    states[static_cast<std::size_t>(session.ranks.rank)] = state.parameters;
  });
  REQUIRE(model.parameters.size() == expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    INFO(model.parameters[i].name);
    bool held = false;
    for (int rank = 0; rank < ranks; ++rank) {
      const std::vector<double>& own = states[static_cast<std::size_t>(rank)][i];
      if (own.empty()) continue;
      held = true;
      torch::Tensor part = expected[i].detach();
      if (const std::int64_t dimension = model.parameters[i].shared_dimension; dimension >= 0)
        part = part.chunk(model.tensor, dimension)[static_cast<std::size_t>(rank % model.tensor)];
      const torch::Tensor flat = part.contiguous().flatten();
      REQUIRE(static_cast<std::size_t>(flat.numel()) == own.size());
      const torch::Tensor found = torch::tensor(own, torch::kFloat64);
      CHECK((flat - found).abs().max().item<double>() < 1e-6);
    }
    CHECK(held);
  }
}

}  // namespace

TEST_CASE("two ranks that share layers train as one process does, also with parts of the sequence") {
  for (const std::string& whole : {kLlama, kLlama + ",tied=1", kGpt, kGpt + ",tied=0,biases=0"})
    for (const char* sequence : {"0", "1"})
      check_training(whole, std::string(",tensor=2,sequence_parallel=") + sequence, "single", 2, kSamples);
}

TEST_CASE("four ranks that share layers in pairs train as one process does: DDP, FSDP, pipelines") {
  for (const std::string& whole : {kLlama, kGpt})
    for (const char* sequence : {"0", "1"}) {
      const std::string shared = std::string(",tensor=2,sequence_parallel=") + sequence;
      check_training(whole, shared, "ddp", 4, kSamples / 2, {{"bucket-cap", "3000B"}});
      check_training(whole, shared, "fsdp", 4, kSamples / 2);
      check_training(whole, shared, "gather_scatter", 4, kSamples / 2);
      for (const char* checkpoint : {"never", "always"})
        check_training(whole, shared, "pipeline", 4, kSamples, {{"split", "1-1"}, {"checkpoint", checkpoint}},
                       4);
    }
}

TEST_CASE(
    "ranks with parts of the sequence train as one process does, alone and with every other dimension") {
  for (const std::string& whole : {kLlama, kGpt}) {
    for (const char* strategy : {"ddp", "fsdp", "all_reduce"})
      check_training(whole, ",context=2", strategy, 2, kSamples);
    check_training(whole, ",context=2", "ddp", 4, kSamples / 2);
    check_training(whole, ",context=4", "fsdp", 4, kSamples, {}, 2);
    for (const char* sequence : {"0", "1"})
      check_training(whole, std::string(",context=2,tensor=2,sequence_parallel=") + sequence, "ddp", 4,
                     kSamples);
    for (const char* mesh : {"pipeline=2,data=2", "data=2,pipeline=2"})
      check_training(whole + (whole == kGpt ? ",tied=0" : ""), ",context=2", "pipeline", 4, kSamples,
                     {{"split", "1-1"}, {"mesh", mesh}}, 2);
  }
}

TEST_CASE("all four ranks share layers, with accumulated gradients") {
  check_training(kGpt, ",tensor=4,sequence_parallel=1", "single", 4, kSamples, {}, 2);
}

}  // namespace stepcast::tensor_parallel_test
