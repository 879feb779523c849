#include <torch/torch.h>

#include <algorithm>
#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "runner/torch/data.hpp"
#include "runner/torch/engine.hpp"
#include "runner/torch/torch_model.hpp"
#include "sim/strategies/strategy.hpp"
#include "tests/runner/as_ranks.hpp"
#include "tests/worlds.hpp"

/// Pipelines, FSDP, accumulation and compression against whole-graph training in one process.

namespace stepcast::parallel_correctness_test {
using namespace worlds;

namespace {

constexpr unsigned kSeed = 3;
constexpr int kSteps = 5;
constexpr double kBf16Rounding = 1.0 / 256;  ///< half of the distance of two bf16, of the smaller at most
constexpr double kMoved = 0.05;  ///< at most, what a step moves a parameter by: gradients are rounded too
using Values = std::vector<std::vector<double>>;

Model small_bert(int layers = 4, int dropout = 0) {
  return with_sgd("bert-base:layers=" + std::to_string(layers) +
                  ",hidden=16,heads=2,sequence=8,vocabulary=40,dropout=" + std::to_string(dropout));
}

/// One process, whole-graph autograd, all batches of a step joined.
Values train_natively(const Model& model, int batch) {
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

/// The parameters that each rank holds in the end; those of others are empty. In float64, or in the model's
/// precision with the losses of the steps in `losses`.
std::vector<Values> train_on_ranks(const std::string& strategy, const Model& model,
                                   const TrainingConfig& config, std::vector<double>* losses = nullptr) {
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

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  double largest = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

/// Every parameter is held somewhere, and equal to the expected one wherever it is held.
void check_equal(const Model& model, const std::vector<Values>& states, const Values& expected,
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

TrainingConfig pipeline(int ranks, const std::string& split, const std::string& schedule, int micro_batches,
                        const std::string& checkpoint = "never") {
  TrainingConfig config;
  config.world_size = ranks;
  config.batch = 8;
  config.micro_batches = micro_batches;
  config.options = {{"split", split}, {"schedule", schedule}, {"checkpoint", checkpoint}};
  return config;
}

}  // namespace

TEST_CASE("pipelines of two ranks train as one process does, for every split, schedule and checkpointing") {
  const Model model = small_bert();
  const Values expected = train_natively(model, 8);
  for (const char* split : {"2-2", "3-1", "1-3"})
    for (const char* schedule : {"gpipe", "1f1b"})
      for (const int micro_batches : {1, 2, 4, 8}) {
        INFO(split << " " << schedule << " " << micro_batches);
        check_equal(model, train_on_ranks("pipeline", model, pipeline(2, split, schedule, micro_batches)),
                    expected);
      }
  for (const char* schedule : {"gpipe", "1f1b"})
    for (const char* checkpoint : {"except_last", "always"}) {
      INFO(schedule << " " << checkpoint);
      check_equal(model, train_on_ranks("pipeline", model, pipeline(2, "2-2", schedule, 4, checkpoint)),
                  expected);
    }
}

TEST_CASE("replicas that share their optimizer, or gradients too, train as one process does") {
  Model model = small_bert();
  for (const char* optimizer : {"sgd", "adam"}) {
    model.optimizer.kind = optimizer;
    model.optimizer.learning_rate = model.optimizer.kind == "adam" ? 1e-3 : 0.05;
    const Values expected = train_natively(model, 8);
    for (const char* zero : {"1", "2"})
      for (const int micro_batches : {1, 2}) {
        INFO(optimizer << " zero " << zero << ", micro-batches " << micro_batches);
        TrainingConfig config;
        config.world_size = 2;
        config.batch = 4;
        config.micro_batches = micro_batches;
        config.options = {{"zero", zero}, {"bucket-cap", "4KiB"}};
        check_equal(model, train_on_ranks("ddp", model, config), expected);
        config = pipeline(4, "2-2", "1f1b", micro_batches);
        config.batch = 4;
        config.options["mesh"] = "pipeline=2,data=2";
        config.options["zero"] = zero;
        check_equal(model, train_on_ranks("pipeline", model, config), expected);
      }
  }
}

TEST_CASE("pipelines whose stages are in shards train as one process does, with tied tensors too") {
  Model model = small_bert();
  for (const char* optimizer : {"sgd", "adam"}) {
    model.optimizer.kind = optimizer;
    model.optimizer.learning_rate = model.optimizer.kind == "adam" ? 1e-3 : 0.05;
    const Values expected = train_natively(model, 8);
    for (const char* mesh : {"pipeline=2,shard=2", "shard=2,pipeline=2"})
      for (const char* schedule : {"gpipe", "1f1b", "zb-h1", "interleaved"}) {
        INFO(optimizer << " " << mesh << " " << schedule);
        const bool interleaved = std::string(schedule) == "interleaved";
        TrainingConfig config = pipeline(4, interleaved ? "even" : "3-1", schedule, 2);
        config.batch = 4;
        config.options["mesh"] = mesh;
        if (interleaved) config.options["virtual-stages"] = "2";
        check_equal(model, train_on_ranks("pipeline", model, config), expected);
        config.recompute = 1;
        check_equal(model, train_on_ranks("pipeline", model, config), expected);
      }
  }
  const Model tied = with_sgd("gpt2-small:layers=4,hidden=16,heads=2,sequence=8,vocabulary=40,dropout=0");
  TrainingConfig config = pipeline(4, "3-1", "1f1b", 2);
  config.batch = 4;
  config.options["mesh"] = "pipeline=2,shard=2";
  check_equal(tied, train_on_ranks("pipeline", tied, config), train_natively(tied, 8));
}

TEST_CASE("interleaved pipelines of two ranks train as one process does") {
  const Model model = small_bert();
  const Values expected = train_natively(model, 8);
  for (const int micro_batches : {2, 4, 8})
    for (const char* checkpoint : {"never", "always"}) {
      INFO(micro_batches << " " << checkpoint);
      TrainingConfig config = pipeline(2, "even", "interleaved", micro_batches, checkpoint);
      config.options["virtual-stages"] = "2";
      check_equal(model, train_on_ranks("pipeline", model, config), expected);
    }
}

TEST_CASE("zero-bubble pipelines train as one process does: alone, with replicas, with what they share") {
  const Model model = small_bert();
  const Values expected = train_natively(model, 8);
  for (const char* split : {"2-2", "3-1", "1-3"})
    for (const int micro_batches : {1, 2, 4, 8}) {
      INFO(split << " " << micro_batches);
      check_equal(model, train_on_ranks("pipeline", model, pipeline(2, split, "zb-h1", micro_batches)),
                  expected);
    }
  check_equal(model, train_on_ranks("pipeline", model, pipeline(4, "even", "zb-h1", 8)), expected);
  for (const char* checkpoint : {"except_last", "always"})
    check_equal(model, train_on_ranks("pipeline", model, pipeline(2, "2-2", "zb-h1", 4, checkpoint)),
                expected);
  TrainingConfig recomputing = pipeline(2, "2-2", "zb-h1", 4);
  recomputing.recompute = 1;
  check_equal(model, train_on_ranks("pipeline", model, recomputing), expected);
  for (const char* zero : {"0", "1", "2"}) {
    INFO("zero " << zero);
    TrainingConfig replicated = pipeline(4, "3-1", "zb-h1", 2);
    replicated.batch = 4;
    replicated.options["mesh"] = "pipeline=2,data=2";
    replicated.options["bucket-cap"] = "3000B";
    replicated.options["zero"] = zero;
    check_equal(model, train_on_ranks("pipeline", model, replicated), expected);
  }
}

TEST_CASE("pipelines of four ranks train as one process does, interleaved and with replicas too") {
  const Model model = small_bert();
  const Values expected = train_natively(model, 8);
  for (const char* schedule : {"gpipe", "1f1b"}) {
    INFO(schedule);
    check_equal(model, train_on_ranks("pipeline", model, pipeline(4, "even", schedule, 8)), expected);
  }
  check_equal(model, train_on_ranks("pipeline", model, pipeline(4, "0-2-2-0", "1f1b", 8)), expected);
  const Model deep = small_bert(8);
  TrainingConfig interleaved = pipeline(4, "even", "interleaved", 4);
  interleaved.options["virtual-stages"] = "2";
  check_equal(deep, train_on_ranks("pipeline", deep, interleaved), train_natively(deep, 8));

  for (const char* mesh : {"pipeline=2,data=2", "data=2,pipeline=2"}) {
    INFO(mesh);
    TrainingConfig replicated = pipeline(4, "3-1", "1f1b", 2);
    replicated.batch = 4;
    replicated.options["mesh"] = mesh;
    replicated.options["bucket-cap"] = "3000B";
    check_equal(model, train_on_ranks("pipeline", model, replicated), expected);
  }
}

TEST_CASE("a pipeline whose head is tied to its embedding trains as one process does: GPT-2") {
  const Model model = with_sgd("gpt2-small:layers=4,hidden=16,heads=2,sequence=8,vocabulary=40,dropout=0");
  const Values expected = train_natively(model, 8);
  for (const int ranks : {2, 4})
    for (const char* schedule : {"1f1b", "zb-h1"})
      check_equal(model, train_on_ranks("pipeline", model, pipeline(ranks, "even", schedule, 4)), expected);
  for (const char* mesh : {"pipeline=2,data=2", "data=2,pipeline=2"})
    for (const char* zero : {"0", "1", "2"}) {
      INFO(mesh << ", ZeRO " << zero);
      TrainingConfig replicated = pipeline(4, "3-1", "1f1b", 2);
      replicated.batch = 4;
      replicated.options["mesh"] = mesh;
      replicated.options["zero"] = zero;
      replicated.options["bucket-cap"] = "3000B";
      check_equal(model, train_on_ranks("pipeline", model, replicated), expected);
    }
}

TEST_CASE("decoders after Llama, and experts, train on ranks as in one process: DDP, FSDP, pipeline") {
  for (const char* name :
       {"llama:layers=4,hidden=16,heads=2,kv_heads=1,sequence=8,vocabulary=40,feed_forward=24",
        "moe:layers=4,hidden=16,heads=2,kv_heads=1,sequence=8,vocabulary=40,feed_forward=24,experts=3,active="
        "2"}) {
    INFO(name);
    const Model model = with_sgd(name);
    const Values expected = train_natively(model, 8);
    for (const char* schedule : {"1f1b", "zb-h1"})
      check_equal(model, train_on_ranks("pipeline", model, pipeline(2, "even", schedule, 4)), expected);
    for (const char* strategy : {"ddp", "fsdp"}) {
      TrainingConfig config;
      config.world_size = 2;
      config.batch = 4;
      check_equal(model, train_on_ranks(strategy, model, config), expected);
    }
  }
}

TEST_CASE("blocks that are recomputed train as those that keep everything, with every strategy") {
  const Model model = small_bert();
  const Values expected = train_natively(model, 8);
  for (const int blocks : {1, 2, 3})
    for (const char* strategy : {"single", "ddp", "fsdp", "all_reduce", "pipeline"}) {
      const std::string name = strategy;
      if (name == "fsdp" && blocks > 1) continue;
      INFO(name << ", every " << blocks);
      TrainingConfig config;
      config.world_size = name == "single" ? 1 : 2;
      config.batch = name == "single" || name == "pipeline" ? 8 : 4;
      config.micro_batches = 2;
      config.recompute = blocks;
      check_equal(model, train_on_ranks(name, model, config), expected);
    }
  TrainingConfig config;
  config.batch = 8;
  const Model noisy = small_bert(4, 10);
  const std::vector<Values> kept = train_on_ranks("single", noisy, config);
  config.recompute = 2;
  CHECK(kept == train_on_ranks("single", noisy, config));
}

TEST_CASE(
    "attention that is computed again gives the same gradients and draws the same masks, to the last bit") {
  for (const Model& model :
       {small_bert(2, 10), small_bert(2),
        with_sgd("gpt:layers=2,hidden=16,heads=2,sequence=8,vocabulary=40,dropout=10"),
        with_sgd("llama:layers=2,hidden=16,heads=4,kv_heads=2,feed_forward=24,sequence=8,vocabulary=40"),
        with_sgd("deepseek:layers=2,hidden=16,heads=2,kv_rank=8,nope=4,rope=4,value=4,dense_feed_forward=24,"
                 "experts=4,active=2,feed_forward=8,groups=2,chosen_groups=1,sequence=8,vocabulary=40")}) {
    INFO(model.specification);
    TrainingConfig config;
    config.batch = 4;
    const std::vector<Values> kept = train_on_ranks("single", model, config);
    config.recomputed_part = RecomputedPart::kCoreAttention;
    const Model again = recomputing(model, config.recomputed_part);
    CHECK(kept == train_on_ranks("single", again, config));
    CHECK(largest_difference(train_natively(again, 4)[0], kept[0][0]) < 1e-12);
  }
}

TEST_CASE("a recomputed forward draws the same dropout masks, so that checkpointing changes nothing") {
  const Model model = small_bert(4, 10);
  const std::vector<Values> kept = train_on_ranks("pipeline", model, pipeline(2, "2-2", "1f1b", 4));
  const std::vector<Values> recomputed =
      train_on_ranks("pipeline", model, pipeline(2, "2-2", "1f1b", 4, "always"));
  for (std::size_t rank = 0; rank < kept.size(); ++rank) CHECK(kept[rank] == recomputed[rank]);
  const Values without = train_natively(small_bert(), 8);
  CHECK(largest_difference(kept[0][0], without[0]) > 1e-9);  // there were masks
}

TEST_CASE("FSDP trains as one process does, for every sharding, wrapping and prefetch") {
  const Model model = small_bert();
  for (const int ranks : {1, 2, 4})
    for (const char* sharding : {"full_shard", "shard_grad_op", "no_shard"}) {
      TrainingConfig config;
      config.world_size = ranks;
      config.batch = 8 / ranks;
      config.options["sharding"] = sharding;
      const Values expected = train_natively(model, 8);
      for (const char* wrap : {"block", "layer", "root"})
        for (const char* prefetch : {"pre", "post", "none"})
          for (const int micro_batches : {1, 2}) {
            config.options["wrap"] = wrap;
            if (std::string(sharding) != "no_shard") {
              config.options["backward-prefetch"] = prefetch;
              config.options["forward-prefetch"] = std::string(prefetch) == "pre" ? "yes" : "no";
              config.options["limit-all-gathers"] =
                  micro_batches == 1 || std::string(prefetch) == "none" ? "2" : "0";
            }
            config.micro_batches = micro_batches;
            INFO(ranks << " " << sharding << " " << wrap << " " << prefetch << " " << micro_batches);
            check_equal(model, train_on_ranks("fsdp", model, config), expected);
            if (ranks != 2) break;
          }
    }
}

TEST_CASE(
    "gradients accumulated over micro-batches give the step of the whole batch, for every data-parallel "
    "strategy") {
  const Model model = small_bert();
  const Values expected = train_natively(model, 8);
  for (const char* strategy : {"single", "gather_scatter", "all_reduce", "ddp", "fsdp"}) {
    INFO(strategy);
    TrainingConfig config;
    config.world_size = std::string(strategy) == "single" ? 1 : 2;
    config.batch = 8 / config.world_size;
    config.micro_batches = 4;
    if (std::string(strategy) == "ddp") config.options["bucket-cap"] = "4KiB";
    check_equal(model, train_on_ranks(strategy, model, config), expected);
  }
}

TEST_CASE("DDP with half-precision buckets trains as one process does up to half precision") {
  const Model model = small_bert();
  const Values expected = train_natively(model, 8);
  TrainingConfig config;
  config.world_size = 2;
  config.batch = 4;
  config.options["compress"] = "fp16";
  const std::vector<Values> states = train_on_ranks("ddp", model, config);
  check_equal(model, states, expected, 2e-3);
  double largest = 0.0;
  for (std::size_t i = 0; i < expected.size(); ++i)
    largest = std::max(largest, largest_difference(states[0][i], expected[i]));
  CHECK(largest > 1e-7);  // it did travel as half precision
}

TEST_CASE("in bf16 two ranks train as one process does in bf16, up to its rounding") {
  const std::string sizes = ":layers=2,hidden=16,heads=2,sequence=8,vocabulary=40";
  const std::string name = GENERATE_REF("gpt" + sizes, "llama" + sizes, std::string("netflix-mlp:hidden=16"));
  const std::string precision =
      GENERATE(as<std::string>{}, "bf16", "bf16,reduction=bf16", "fp32,reduction=bf16");
  const Model model = in_precision(with_sgd(name), Precision::parse(precision));
  const bool is_bf16 = precision.starts_with("bf16");
  TrainingConfig alone;
  alone.batch = 8;
  std::vector<double> expected_losses;
  const Values expected = train_on_ranks("single", model, alone, &expected_losses).front();
  const Model in_fp32 = with_sgd(name);
  std::vector<double> losses_in_fp32;
  train_on_ranks("single", in_fp32, alone, &losses_in_fp32);
  CHECK((expected_losses != losses_in_fp32) == is_bf16);
  struct Way {
    const char* strategy;
    std::map<std::string, std::string> options;
  };
  for (const Way& way : {Way{"ddp", {}}, Way{"ddp", {{"zero", "1"}}}, Way{"ddp", {{"zero", "2"}}},
                         Way{"fsdp", {}}, Way{"fsdp", {{"sharding", "shard_grad_op"}}}}) {
    TrainingConfig config;
    config.world_size = 2;
    config.batch = 4;
    config.options = way.options;
    INFO(name << " in " << precision << ", " << way.strategy << " "
              << (way.options.empty() ? "" : way.options.begin()->second));
    std::vector<double> losses;
    const std::vector<Values> states = train_on_ranks(way.strategy, model, config, &losses);
    REQUIRE(losses.size() == expected_losses.size());
    for (std::size_t i = 0; i < losses.size(); ++i)
      CHECK(losses[i] == Approx(expected_losses[i]).epsilon(kBf16Rounding));
    for (std::size_t i = 0; i < expected.size(); ++i)
      for (const Values& rank : states) {
        double apart = 0.0;
        bool is_rounded = true;
        for (std::size_t k = 0; k < expected[i].size(); ++k) {
          const double rounding = 2.0 * std::abs(expected[i][k]) + kSteps * kMoved;
          apart = std::max(apart, std::abs(rank[i][k] - expected[i][k]) / rounding);
          const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(rank[i][k]));
          is_rounded = is_rounded && (bits & 0xffffU) == 0;
        }
        INFO(model.parameters[i].name);
        CHECK(apart <= kBf16Rounding);
        CHECK((is_rounded || !is_bf16));
      }
  }
}

TEST_CASE("gradients that are reduced in place are not reduced in another precision than theirs") {
  const Model model = in_precision(with_sgd("netflix-mlp:hidden=16"), Precision::parse("bf16"));
  TrainingConfig config;
  config.world_size = 2;
  config.batch = 4;
  config.options["sharding"] = "no_shard";
  std::vector<double> losses;
  CHECK_THROWS_WITH(train_on_ranks("fsdp", model, config, &losses),
                    Catch::Contains("take --precision bf16,reduction=bf16"));
}

TEST_CASE("a forward-only pipeline runs and changes no parameter") {
  const Model model = small_bert();
  TrainingConfig config = pipeline(2, "2-2", "1f1b", 4);
  config.options["forward-only"] = "yes";
  const std::vector<Values> states = train_on_ranks("pipeline", model, config);
  const TorchModel start(model, torch::kFloat64, kSeed);
  for (std::size_t i = 0; i < model.parameters.size(); ++i) {
    INFO(model.parameters[i].name);
    const torch::Tensor flat = start.parameters()[i].detach().contiguous();
    const std::vector<double> expected(flat.data_ptr<double>(), flat.data_ptr<double>() + flat.numel());
    CHECK((states[0][i] == expected || states[1][i] == expected));
  }
}

}  // namespace stepcast::parallel_correctness_test
