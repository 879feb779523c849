#include <torch/torch.h>

#include <algorithm>
#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tests/runner/trained.hpp"

/// Data parallelism, FSDP, accumulation, recomputation and precisions against whole-graph training in one
/// process.
namespace stepcast::parallel_correctness_test {
using namespace trained;

namespace {

constexpr double kBf16Rounding = 1.0 / 256;  ///< half of the distance of two bf16, of the smaller at most
constexpr double kMoved = 0.05;  ///< at most, what a step moves a parameter by: gradients are rounded too

}  // namespace

TEST_CASE("replicas that share their optimizer, or gradients too, train as one process does") {
  Model model = small_bert();
  for (const char* optimizer : {"sgd", "adam"}) {
    model.optimizer.kind = optimizer;
    model.optimizer.learning_rate = model.optimizer.kind == "adam" ? 1e-3 : 0.05;
    const Values expected = train_natively(model, 8);
    const OptionTexts as_deepspeed{{"reduce-by", "all-reduce"}, {"reduce-when", "waited"}};
    for (const char* zero : {"1", "2"})
      for (const int micro_batches : {1, 2}) {
        const char* gathers = micro_batches == 1 ? "update" : "forward";
        INFO(optimizer << " zero " << zero << ", micro-batches " << micro_batches << ", gathers " << gathers);
        TrainingConfig config;
        config.world_size = 2;
        config.batch = 4;
        config.micro_batches = micro_batches;
        config.options = {{"zero", zero}, {"bucket-cap", "4KiB"}, {"gather-parameters", gathers}};
        if (model.optimizer.kind == "adam") config.options.insert(as_deepspeed.begin(), as_deepspeed.end());
        check_equal(model, train_on_ranks("ddp", model, config), expected);
        if (zero == std::string("2") && micro_batches > 1) {
          config.options["accumulate"] = "every";
          check_equal(model, train_on_ranks("ddp", model, config), expected);
        }
        config = pipeline(4, "2-2", "1f1b", micro_batches);
        config.batch = 4;
        config.mesh = Mesh::parse("pipeline=2,data=2");
        config.options["zero"] = zero;
        config.options["gather-parameters"] = gathers;
        if (model.optimizer.kind == "adam") config.options.insert(as_deepspeed.begin(), as_deepspeed.end());
        check_equal(model, train_on_ranks("pipeline", model, config), expected);
      }
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
  for (const char* text : {"full", "every:2", "every:3", "first:1", "each:2"})
    for (const char* strategy : {"single", "ddp", "fsdp", "all_reduce", "pipeline"}) {
      const std::string name = strategy;
      const Recomputation recomputation = parse_recompute(text);
      if (name == "fsdp" && recomputation.blocks > 1) continue;
      INFO(name << ", " << text);
      TrainingConfig config;
      config.world_size = name == "single" ? 1 : 2;
      config.batch = name == "single" || name == "pipeline" ? 8 : 4;
      config.micro_batches = 2;
      config.recompute = recomputation;
      check_equal(model, train_on_ranks(name, model, config), expected);
    }
  TrainingConfig config;
  config.batch = 8;
  const Model noisy = small_bert(4, 10);
  const std::vector<Values> kept = train_on_ranks("single", noisy, config);
  config.recompute.blocks = 2;
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
    config.recompute.part = RecomputedPart::kCoreAttention;
    const Model again = recomputing(model, config.recompute.part);
    CHECK(kept == train_on_ranks("single", again, config));
    CHECK(largest_difference(train_natively(again, 4)[0], kept[0][0]) < 1e-12);
  }
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
      for (const char* wrap : {"block", "ends", "layer", "root"})
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
    if (std::string(strategy) != "fsdp") continue;
    config.options["accumulate"] = "every";
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
    OptionTexts options;
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

}  // namespace stepcast::parallel_correctness_test
