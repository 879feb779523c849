#include <algorithm>
#include <catch2/catch.hpp>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "core/error.hpp"
#include "sim/strategies/strategy.hpp"

/// What recomputing blocks keeps, and what it does again.

namespace stepcast {

namespace {

constexpr int kRecomputeBatch = 2;

Schedule recomputing(const Model& model, const std::string& strategy, int ranks, int blocks,
                     int micro_batches = 1) {
  TrainingConfig config;
  config.world_size = ranks;
  config.batch = kRecomputeBatch;
  config.micro_batches = micro_batches;
  config.recompute.blocks = blocks;
  return build_schedule(strategy, model, config);
}

/// Live activations of the operations one after the other: the most, and what is left in the end.
struct Activations {
  double peak = 0.0, left = 0.0;
};
Activations activations(const Schedule& schedule, const Model& model) {
  Activations result;
  const double samples = static_cast<double>(kRecomputeBatch) / schedule.micro_batches;
  for (const Op& op : schedule.program(0).ops)
    for (const bool at_end : {false, true})
      for (const MemoryChange& change : op.memory) {
        if (change.at_end != at_end || change.category != MemoryCategory::kActivations) continue;
        result.left += change.size.count();
        if (change.segment >= 0)
          result.left += change.saved * samples *
                         model.segments[static_cast<std::size_t>(change.segment)].saved.size.count();
        result.peak = std::max(result.peak, result.left);
      }
  return result;
}

}  // namespace

TEST_CASE("every Nth block of fewer than N is refused") {
  TrainingConfig config;
  config.batch = kRecomputeBatch;
  config.recompute = {.blocks = 1, .each = 9};
  CHECK_THROWS_WITH(build_schedule("single", load_model("bert-base:layers=4"), config),
                    "--recompute each:9 has no effect: 'bert-base:layers=4' has 4 blocks");
}

TEST_CASE("the first blocks of a stage, or every Nth block, are recomputed alone") {
  const Model model = load_model("gpt:layers=6,hidden=64,heads=4,sequence=32,vocabulary=64");
  const auto again = [&](const std::string& text, const std::string& strategy, int ranks) {
    const Recomputation recomputation = parse_recompute(text);
    CHECK(to_text(recomputation) == text);
    TrainingConfig config;
    config.world_size = ranks;
    config.batch = kRecomputeBatch;
    config.recompute = recomputation;
    const Schedule schedule = build_schedule(strategy, model, config);
    CHECK(activations(schedule, model).left == Approx(0.0).margin(1e-6));
    std::set<int> blocks;
    for (const Program& program : schedule.programs)
      for (const Op& op : program.ops)
        if (const auto* compute = std::get_if<Compute>(&op.action);
            compute != nullptr && compute->phase == Phase::kRecompute)
          blocks.insert(compute->segment);
    return blocks;
  };
  CHECK(again("full", "single", 1) == std::set{1, 2, 3, 4, 5, 6});
  CHECK(again("first:2", "single", 1) == std::set{1, 2});
  CHECK(again("first:1", "pipeline", 2) == std::set{1, 4});
  CHECK(again("each:2", "single", 1) == std::set{2, 4, 6});
  CHECK(again("each:3", "pipeline", 2) == std::set{3, 6});
  CHECK_THROWS_WITH(parse_recompute("each:0"), Catch::Contains("each:N"));
}

TEST_CASE("recomputed blocks keep one input for each unit, and one unit whole at a time") {
  constexpr int kBlocks = 6;
  const Model model = load_model("gpt:layers=6,hidden=64,heads=4,sequence=32,vocabulary=64");
  const auto bytes = [](Bytes per_sample) { return kRecomputeBatch * per_sample.count(); };
  const double embedding = bytes(model.segments.front().saved.size),
               block = bytes(model.segments[1].saved.size);
  const double head = bytes(model.segments.back().saved.size), output = bytes(model.segments[1].output_size);
  for (const int blocks : {1, 2, 3}) {
    INFO("every " << blocks);
    const Activations found = activations(recomputing(model, "single", 1, blocks), model);
    // The first unit's input is the embedding's output; beside the last unit lie its output's gradient and,
    // as it computes its first backward, that of its input.
    const double inputs = (kBlocks / blocks - 1) * output;
    const double at_loss = embedding + inputs + output + head + bytes(model.segments.back().output_size);
    const double at_unit = embedding + inputs + blocks * block + output;
    CHECK(found.peak == Approx(std::max(at_loss, at_unit)).epsilon(1e-12));
    CHECK(found.left == Approx(0.0).margin(1e-6));
  }
  CHECK(activations(recomputing(model, "single", 1, 0), model).peak > embedding + kBlocks * block);
}

TEST_CASE(
    "nothing stays in memory after a step, and every block runs its forward once more for each micro-batch") {
  for (const char* name : {"gpt:layers=4,hidden=64,heads=4,sequence=32,vocabulary=64", "vgg11-bn-cifar"})
    for (const char* strategy : {"single", "ddp", "fsdp", "pipeline"})
      for (const int blocks : {0, 1}) {
        INFO(name << " " << strategy << " " << blocks);
        const Model model = load_model(name);
        const int ranks = std::string(strategy) == "single" ? 1 : 2;
        const Schedule schedule = recomputing(model, strategy, ranks, blocks, 2);
        int forwards = 0, again = 0;
        for (const Op& op : schedule.program(0).ops)
          if (const auto* compute = std::get_if<Compute>(&op.action)) {
            const bool counts = compute->checkpointed;
            forwards += counts && compute->phase == Phase::kForward ? 1 : 0;
            again += compute->phase == Phase::kRecompute ? 1 : 0;
          }
        CHECK(forwards == again);
        CHECK((again > 0) == (blocks > 0));
        CHECK(activations(schedule, model).left == Approx(0.0).margin(1e-3));
      }
}

TEST_CASE("recomputation is written as given, and unsupported values are errors") {
  const Model model = load_model("gpt:layers=4,hidden=64,heads=4,sequence=32,vocabulary=64");
  CHECK(parse_recompute("none") == Recomputation{});
  CHECK(parse_recompute("full") == Recomputation{.blocks = 1});
  CHECK(parse_recompute("every:3") == Recomputation{.blocks = 3});
  CHECK(to_text(parse_recompute("selective")) == "selective");
  CHECK(to_text(parse_recompute("per-op")) == "per-op");
  CHECK_THROWS_WITH(recomputing(load_model("simple-cnn"), RecomputedPart::kCoreAttention),
                    Catch::Contains("has no attention"));
  CHECK_THROWS_WITH(recomputing(load_model("simple-cnn"), RecomputedPart::kOperations).segments.size(),
                    Catch::Contains("repeats no blocks"));
  CHECK_THROWS_WITH(recomputing(load_model("mamba2-2.7b"), RecomputedPart::kOperations),
                    Catch::Contains("has state-space layers"));
  for (const char* text : {"select", "every:0", "every", "every:x", ""})
    CHECK_THROWS_WITH(parse_recompute(text), Catch::Contains("must be none, full, every:N"));
  CHECK(recomputing(model, "ddp", 2, 2).options.at("recompute") == "every:2");
  CHECK_THROWS_WITH(recomputing(model, "fsdp", 2, 2), Catch::Contains("gathers one block at a time"));
}

namespace {

/// Of a block, per sample, in 16 bit with a byte for each number that dropout draws.
Model half(const std::string& name, RecomputedPart part) {
  return in_precision(recomputing(load_model(name), part), Precision::parse("bf16"), true);
}

}  // namespace

TEST_CASE(
    "selective recomputation keeps what Korthikanti et al. count, 34 s h, without the 5 a s^2 of "
    "probabilities") {
  const std::string name = "gpt:layers=2,hidden=64,heads=4,sequence=128,vocabulary=128,dropout=10,flash=0";
  constexpr double s = 128, h = 64, a = 4;
  constexpr double statistics = 4 * 2 * 2 * s;  // mean and deviation of two norms, fp32
  const Segment all = half(name, RecomputedPart::kNothing).segments[1];
  const Segment some = half(name, RecomputedPart::kCoreAttention).segments[1];
  CHECK(all.saved.size.count() == Approx(34 * s * h + 5 * a * s * s + statistics));
  CHECK(some.saved.size.count() == Approx(34 * s * h + statistics));
  CHECK(some.recomputed.saved.size.count() == Approx(5 * a * s * s));
  CHECK(some.saved.masks.count() == Approx(2 * s * h));
  Flop again;
  for (const LayerWork& work : some.recomputed.work) again += work.forward();
  CHECK(again.count() == Approx(4 * s * s * h));  // q k^T and p v
  CHECK(some.flop.forward == all.flop.forward);
}

TEST_CASE("modules of Megatron free what its checkpoints do not keep of DeepSeek-V3's layers") {
  constexpr double s = 4096, h = 7168, heads = 128, q = 1536, c = 512, active = 8, f = 2048;
  const std::string name = "deepseek-v3:transformer_engine=1,sequence=4096";
  const auto block = [&](const char* part) {
    return half(name, recomputed_part(part).value()).segments[10];  // with experts
  };
  const Segment all = block("none");
  const auto freed = [&](const char* part) {
    const Segment some = block(part);
    CHECK(some.recomputed.saved.size.count() == Approx((all.saved.size - some.saved.size).count()));
    CHECK(some.flop.forward == all.flop.forward);
    return (all.saved.size - some.saved.size).count() / s;
  };
  const double up = 2 * (q + c) + 4 * heads * 192 + 2 * heads * 128;
  CHECK(up == 135168);
  CHECK(freed("mla_up_proj") == Approx(up));
  CHECK(freed("moe_act") == Approx(2 * active * f));
  CHECK(freed("shared_experts") == Approx(6 * f));
  CHECK(freed("layernorm") == Approx(2 * 2 * h));
  CHECK(freed("layernorm+moe_act") == Approx(2 * 2 * h + 2 * active * f));
  Flop again;
  for (const LayerWork& work : block("mla_up_proj").recomputed.work)
    work.for_each_gemm([&](const Gemm& one) { again += Flop(one.flop()); });
  CHECK(again.count() == Approx(2 * s * heads * (q * 192 + c * 256)));
  CHECK(to_text(parse_recompute("moe_act+layernorm")) == "layernorm+moe_act");
  CHECK_THROWS_WITH(recomputing(load_model("deepseek-v3"), RecomputedPart::kUpProjection),
                    Catch::Contains("no modules of Megatron"));
  CHECK_THROWS_WITH(
      recomputing(load_model("mixtral-8x7b:transformer_engine=1"), RecomputedPart::kUpProjection),
      Catch::Contains("has no latent attention"));
}

TEST_CASE("per-op with dropout runs again to the end, since masks are drawn anew") {
  const std::string name = "gpt:layers=2,hidden=64,heads=4,sequence=128,vocabulary=128";
  const auto last_again = [&](const std::string& dropout) {
    const Segment some = half(name + ",dropout=" + dropout, RecomputedPart::kOperations).segments[1];
    double flop = 0.0;  // of the GEMMs
    for (const LayerWork& work : some.recomputed.work)
      work.for_each_gemm([&](const Gemm& one) { flop += one.rows * one.columns * one.depth; });
    return flop;
  };
  // Key and projection; with dropout behind it the last product too, of which every sixth is not kept.
  CHECK(last_again("0") == Approx(128.0 * (64 * 64 + 64 * 64)));
  CHECK(last_again("10") == Approx(128.0 * (64 * 64 + 64 * 64 + 4 * 64 * 64)));
}

TEST_CASE("with fused attention selective recomputation frees one number per head and position") {
  const std::string name = "llama:layers=2,hidden=64,heads=4,sequence=128,vocabulary=128";
  const Segment all = half(name, RecomputedPart::kNothing).segments[1];
  const Segment some = half(name, RecomputedPart::kCoreAttention).segments[1];
  CHECK((all.saved.size - some.saved.size).count() == Approx(4 * 4 * 128));
  CHECK(some.recomputed.work.size() == 1);
}

TEST_CASE("per-op keeps every second GEMM, and attention, of a block") {
  const std::string name =
      "llama:layers=2,hidden=64,heads=4,kv_heads=2,feed_forward=160,sequence=128,vocabulary=128";
  constexpr double s = 128, h = 64, w = 32, f = 160, a = 4;
  const Segment all = half(name, RecomputedPart::kNothing).segments[1];
  const Segment some = half(name, RecomputedPart::kOperations).segments[1];
  // q, value, attention with its numbers, gate, down, and the sum that the block gives; key, output and up
  // run again.
  CHECK(some.saved.size.count() == Approx(2 * s * (h + w + h + a + f + h + h)));
  double products = 0.0;
  for (const LayerWork& work : some.recomputed.work)
    work.for_each_gemm([&](const Gemm& one) { products += one.rows * one.columns * one.depth; });
  CHECK(products == Approx(s * (h * w + h * h + h * f)));
  CHECK(std::none_of(some.recomputed.work.begin(), some.recomputed.work.end(),
                     [](const LayerWork& work) { return work.any(&Kernel::attention); }));
  CHECK(some.saved.size < 0.6 * all.saved.size);
  CHECK(some.saved.size + some.recomputed.saved.size >= all.saved.size);
}

TEST_CASE("per-op keeps nothing of experts but what all-to-alls bring") {
  const std::string name =
      "moe:layers=2,hidden=64,heads=4,kv_heads=2,experts=8,active=2,feed_forward=160,sequence=128,vocabulary="
      "128";
  constexpr double s = 128, h = 64, w = 32, a = 4, rows = 2 * s;
  const Segment alone = half(name, RecomputedPart::kOperations).segments[1];
  // q, value, attention with its numbers, and the sum that the block gives
  CHECK(alone.saved.size.count() == Approx(2 * s * (h + w + h + a + h)));
  const Segment shared = half(name + ",expert=4", RecomputedPart::kOperations).segments[1];
  CHECK((shared.saved.size - alone.saved.size).count() == Approx(2 * 2 * rows * h));
  CHECK(std::ranges::any_of(alone.recomputed.work, &LayerWork::has_router));
  CHECK_THROWS_WITH(half(name + ",expert=2,expert_tensor=2", RecomputedPart::kOperations),
                    Catch::Contains("divides experts"));
}

TEST_CASE("what is recomputed of a block leaves nothing behind, and gathers again what ranks had gathered") {
  for (const char* strategy : {"single", "ddp", "fsdp", "pipeline"})
    for (const RecomputedPart part : {RecomputedPart::kCoreAttention, RecomputedPart::kOperations}) {
      const int ranks = std::string(strategy) == "single" ? 1 : 2;
      const Model model =
          recomputing(load_model("gpt:layers=4,hidden=64,heads=4,sequence=32,vocabulary=64"), part);
      const Schedule schedule = recomputing(model, strategy, ranks, 0, 2);
      CHECK(schedule.options.at("recompute") == to_text(part));
      if (std::string(strategy) != "pipeline")
        CHECK(activations(schedule, model).left == Approx(0.0).margin(1e-3));
    }
  const Model shared = recomputing(
      load_model("llama:layers=2,hidden=64,heads=4,sequence=32,vocabulary=64,tensor=2,sequence_parallel=1"),
      RecomputedPart::kOperations);
  const auto gathers = [&](bool backward) {
    int count = 0;
    for (const int index : shared.segments[1].collectives) {
      const LayerCollective& exchange = shared.collectives[static_cast<std::size_t>(index)];
      count += exchange.backward == backward && exchange.kind == LayerCollectiveKind::kAllGather ? 1 : 0;
    }
    return count;
  };
  CHECK(gathers(false) == 2);
  CHECK(gathers(true) == 2 + 2);  // of the gradients, and once more of the inputs
}

TEST_CASE("a recomputation of what is needed stops before the last GEMM of its unit") {
  const std::string text = "llama:layers=4,hidden=64,feed_forward=128,heads=4,sequence=32,vocabulary=64";
  Model model = load_model(text);
  const double last_gemm = 2.0 * 32 * 64 * 128, part = model.segments[1].needed_part();
  CHECK(part == Approx(1.0 - last_gemm / model.segments[1].flop.forward.count()));
  const auto ends = [&](int blocks) {
    std::vector<bool> result;
    const Schedule schedule = recomputing(model, "single", 1, blocks);
    for (const Op& op : schedule.program(0).ops)
      if (const auto* one = std::get_if<Compute>(&op.action);
          one != nullptr && one->phase == Phase::kRecompute)
        result.push_back(one->needed);
    return result;
  };
  CHECK(ends(1) == std::vector<bool>(4, false));
  model.execution.recomputed = "needed";
  CHECK(ends(1) == std::vector<bool>(4, true));
  CHECK(ends(2) == std::vector<bool>{false, true, false, true});
  CHECK(load_model("bert-base").segments[1].needed_part() == 1.0);  // a norm after it reads its output
  CHECK(load_model("gpt:layers=2,dropout=10").segments[1].needed_part() == 1.0);
  CHECK(load_model("moe:layers=2").segments[1].needed_part() == 1.0);
  CHECK(load_model("llama:layers=2,lora=8").segments[1].needed_part() == 1.0);

  const auto sums = [&](const char* recomputed) {
    Model shared = load_model(text + ",tensor=2,sequence_parallel=1");
    shared.execution.recomputed = recomputed;
    const Schedule schedule = recomputing(shared, "ddp", 2, 1);
    return std::ranges::count_if(schedule.program(0).ops, [](const Op& op) {
      const auto* call = std::get_if<Collective>(&op.action);
      return call != nullptr && call->kind == CollectiveKind::kReduceScatter &&
             op.name.find("recompute") != std::string::npos;
    });
  };
  CHECK(sums("whole") == 2 * 4);
  CHECK(sums("needed") == 1 * 4);
}

}  // namespace stepcast
