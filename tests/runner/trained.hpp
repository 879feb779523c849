#pragma once

#include <torch/torch.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <string>
#include <vector>

#include "runner/engine/torch_engine.hpp"
#include "runner/torch/data.hpp"
#include "runner/torch/torch_model.hpp"
#include "sim/strategies/strategy.hpp"
#include "tests/runner/as_ranks.hpp"
#include "tests/worlds.hpp"

/// Training on ranks and, to compare with, in one process.
namespace stepcast::trained {
using namespace worlds;

inline constexpr unsigned kSeed = 3;
inline constexpr int kSteps = 5;
using Values = std::vector<std::vector<double>>;

inline Model small_bert(int layers = 4, int dropout = 0) {
  return with_sgd("bert-base:layers=" + std::to_string(layers) +
                  ",hidden=16,heads=2,sequence=8,vocabulary=40,dropout=" + std::to_string(dropout));
}

/// Trains in one process with whole-graph autograd and all batches of a step joined.
inline Values train_natively(const Model& model, int batch) {
  const torch::NoGradGuard no_grad;
  TorchModel net(model, torch::kFloat64, kSeed);
  const Dataset data = Dataset::synthetic(model, kSeed);
  for (int step = 0; step < kSteps; ++step) {
    const Batch joint = data.batch(step, 0, 1, batch, torch::kFloat64);
    net.zero_grad();
    {
      const torch::AutoGradMode enabled(true);
      net.loss(net.forward(joint.input), joint.target).backward();
    }
    net.optimizer_step();
  }
  Values values;
  for (const torch::Tensor& parameter : net.parameters()) {
    const torch::Tensor flat = parameter.detach().contiguous();
    values.emplace_back(flat.data_ptr<double>(), flat.data_ptr<double>() + flat.numel());
  }
  return values;
}

/// Parameters that each rank holds at the end; those that other ranks hold are empty. Trains in float64, or
/// in the model's precision if `losses` is set, to which it writes the losses of the steps.
inline std::vector<Values> train_on_ranks(const std::string& strategy, const Model& model,
                                          const TrainingConfig& config,
                                          std::vector<double>* losses = nullptr) {
  const Schedule schedule = build_schedule(strategy, model, config);
  std::vector<Values> states(static_cast<std::size_t>(config.world_size));
  as_sessions(config.world_size, [&](RankSession& session) {
    RunOptions options;
    options.batch = config.batch;
    options.steps = kSteps;
    options.warmup_steps = 0;
    options.seed = kSeed;
    options.float64 = losses == nullptr;
    options.precision = model.precision;
    FinalState state;
    const Result result = run_schedule(model, schedule, session, options, &state);
    if (losses != nullptr && session.ranks.rank == 0) *losses = result.loss;
    states[static_cast<std::size_t>(session.ranks.rank)] = state.parameters;
  });
  return states;
}

inline double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  double largest = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

/// Checks that some rank holds each parameter, and that all copies equal the expected one.
inline void check_equal(const Model& model, const std::vector<Values>& states, const Values& expected,
                        double tolerance = 1e-6) {
  for (std::size_t i = 0; i < expected.size(); ++i) {
    INFO(model.parameters[i].name);
    bool held = false;
    for (const Values& rank : states) {
      if (rank[i].empty()) continue;
      held = true;
      CHECK(largest_difference(rank[i], expected[i]) < tolerance);
    }
    CHECK(held);
  }
}

inline TrainingConfig pipeline(int ranks, const std::string& split, const std::string& schedule,
                               int micro_batches, const std::string& checkpoint = "never") {
  TrainingConfig config;
  config.world_size = ranks;
  config.batch = 8;
  config.micro_batches = micro_batches;
  config.options = {{"split", split}, {"schedule", schedule}, {"checkpoint", checkpoint}};
  return config;
}

}  // namespace stepcast::trained
