#include <catch2/catch.hpp>

#include "core/error.hpp"
#include "core/ranges.hpp"
#include "models/model.hpp"
#include "sim/strategies/strategy.hpp"
#include "tests/temporary_folder.hpp"

/// Frozen parameters and adapters: counts, flop and bytes of what is left.
namespace stepcast::frozen_test {
namespace {

const std::string kSizes =
    "llama:layers=4,hidden=64,heads=4,kv_heads=2,feed_forward=96,vocabulary=128,sequence=32";
constexpr double kTokens = 32.0;

double sent(const Model& model, const std::string& strategy, CollectiveKind kind,
            const OptionTexts& options = {}) {
  TrainingConfig config;
  config.world_size = 4;
  config.batch = 4;
  config.options = options;
  double sum = 0.0;
  const Schedule schedule = build_schedule(strategy, model, config);
  for (const Op& op : schedule.program(0).ops)
    if (const auto* call = std::get_if<Collective>(&op.action); call != nullptr && call->kind == kind)
      sum += call->message.count();
  return sum;
}

double resident(const Model& model, MemoryCategory category, const OptionTexts& options) {
  TrainingConfig config;
  config.world_size = 4;
  config.batch = 4;
  config.options = options;
  double sum = 0.0;
  const Schedule schedule = build_schedule("ddp", model, config);
  for (const MemoryChange& change : schedule.program(0).resident)
    if (change.category == category) sum += change.size.count();
  return sum;
}

}  // namespace

TEST_CASE("adapters have r (in + out) parameters beside each weight, and all others are frozen", "[models]") {
  const Model whole = load_model(kSizes), lora = load_model(kSizes + ",lora=4"),
              attention = load_model(kSizes + ",lora=4,lora_linear=0");
  const std::int64_t qkv = 4 * (3 * 64 + 64 + 32 + 32), linear = 4 * (64 + 64 + 3 * (64 + 96));
  CHECK(attention.trained_count() == 4 * qkv);
  CHECK(lora.trained_count() == 4 * (qkv + linear));
  CHECK(lora.parameter_count() == whole.parameter_count() + lora.trained_count());
  CHECK(sum_of(lora.parameters, &Parameter::gradient) ==
        Bytes(4.0 * static_cast<double>(lora.trained_count())));
  for (const Parameter& one : lora.parameters)
    CHECK(one.frozen == (one.name.find("lora_") == std::string::npos));
}

TEST_CASE("a frozen weight has no gradient: its GEMM takes two passes in place of three", "[models]") {
  const Model whole = load_model(kSizes), lora = load_model(kSizes + ",lora=4,lora_linear=0");
  const auto& [block, adapted] = std::pair(whole.segments[2], lora.segments[2]);
  Flop weights, adapters;
  for (const LayerWork& work : block.work) weights += work.weight_gradients();
  for (const LayerWork& work : adapted.work) adapters += work.weight_gradients();
  CHECK(adapters == Flop(2.0 * kTokens * 4.0 * (3 * 64 + 64 + 32 + 32)));
  CHECK(adapted.flop.forward - block.flop.forward == adapters);
  CHECK(adapted.flop.backward == block.flop.backward - weights + 2.0 * adapters);
  CHECK(adapted.saved.size < block.saved.size);  // inputs of frozen GEMMs
  CHECK(lora.segments.front().flop.backward == Flop(0));
}

TEST_CASE("frozen first blocks have no backward and save nothing but their outputs", "[models]") {
  const Model model = load_model(kSizes + ",frozen=2");
  for (int i = 0; i < 3; ++i) {
    CHECK(model.segments[i].flop.backward == Flop(0));
    CHECK(model.segments[i].saved.size == model.segments[i].output_size);
    CHECK_FALSE(model.segments[i].has_backward());
    CHECK(model.segments[i].parameters.empty());
    CHECK_FALSE(model.segments[i].passes_gradient());
  }
  CHECK_FALSE(model.segments[3].passes_gradient());
  CHECK(model.segments[4].passes_gradient());
  const Model parts = load_model(kSizes + ",frozen=2,context=2");
  for (const LayerCollective& one : parts.collectives) CHECK((one.segment >= 3 || !one.backward));
}

TEST_CASE("fused attention keeps its output where the frozen layer behind it keeps no input", "[models]") {
  const Model without = load_model(kSizes + ",lora=4,lora_linear=0"), with = load_model(kSizes + ",lora=4");
  // Inputs of gate and up (one array) and of down, and what four matrices A give, 4 B each.
  const double inputs = 64 + 96, adapters = 4 * 4;
  CHECK((with.segments[2].saved.size - without.segments[2].saved.size).count() ==
        Approx(4.0 * kTokens * (inputs + adapters)));
}

TEST_CASE("nothing is recomputed in front of the first trained block", "[models]") {
  const Model all = load_model(kSizes + ",flash=0"), some = load_model(kSizes + ",flash=0,frozen=2");
  const Model part = recomputing(some, *recomputed_part("selective"));
  CHECK(part.segments[1].saved.size == some.segments[1].saved.size);
  CHECK(part.segments[3].saved.size ==
        recomputing(all, *recomputed_part("selective")).segments[3].saved.size);
  TrainingConfig config;
  config.world_size = 4;
  config.batch = 4;
  config.recompute.blocks = 1;
  for (const char* strategy : {"ddp", "fsdp"}) {
    const Schedule schedule = build_schedule(strategy, some, config);
    for (const Op& op : schedule.programs.front().ops)
      for (const char* block : {"layer0", "layer1", "embeddings"})
        CHECK_FALSE((op.name.find(block) != std::string::npos && !op.name.starts_with("forward/") &&
                     !op.name.starts_with("all_gather/") && !op.name.starts_with("reshard/")));
  }
}

TEST_CASE("frozen parameters are gathered, and neither reduced nor updated", "[strategies]") {
  const Model whole = load_model(kSizes), lora = load_model(kSizes + ",lora=4");
  const double trained = sum_of(lora.parameters, &Parameter::gradient).count();
  CHECK(sent(lora, "ddp", CollectiveKind::kAllReduce) == trained);
  CHECK(sent(lora, "fsdp", CollectiveKind::kReduceScatter) == trained);
  const OptionTexts once{{"sharding", "shard_grad_op"}};
  CHECK(sent(lora, "fsdp", CollectiveKind::kAllGather, once) ==
        sent(whole, "fsdp", CollectiveKind::kAllGather, once) + trained);
  for (const char* zero : {"0", "1"}) {
    const OptionTexts options{{"zero", zero}};
    const double sharers = zero[0] == '0' ? 1.0 : 4.0;
    CHECK(resident(lora, MemoryCategory::kOptimizerState, options) == 2.0 * trained / sharers);
    CHECK(resident(lora, MemoryCategory::kParameters, options) >= lora.parameter_bytes().count());
  }
}

TEST_CASE("models in which nothing is trained, or adapters that are not modelled, are refused", "[models]") {
  CHECK_THROWS_WITH(load_model(kSizes + ",frozen=5"),
                    Catch::Contains("frozen is 5; take at most 4, the segments"));
  CHECK_THROWS_WITH(load_model(kSizes + ",lora=4,frozen=2"),
                    Catch::Contains("frozen=2 has no effect beside"));
  CHECK_THROWS_WITH(load_model(kSizes + ",lora=-1"), Catch::Contains("lora: must be at least 0"));
  CHECK(load_model(kSizes + ",lora_linear=4").trained_count() == 4 * 4 * (64 + 64 + 3 * (64 + 96)));
  CHECK_THROWS_WITH(load_model(kSizes + ",lora=4,tensor=2"), Catch::Contains("set tensor=1 or lora=0"));
  const TemporaryFolder folder;
  const std::string file = folder.write("all.yaml",
                                        "description: d\ninput: {kind: features, shape: [4]}\n"
                                        "loss: binary_cross_entropy\n"
                                        "optimizer: {kind: sgd, learning_rate: 0.1}\nsegments:\n"
                                        "  - {name: a, frozen: 1, layers: [linear: {name: a, out: 1}]}\n");
  CHECK_THROWS_WITH(load_model(file), Catch::Contains("all parameters are frozen; nothing is trained"));
  TrainingConfig stages;
  stages.world_size = 4;
  stages.batch = 4;
  stages.micro_batches = 4;
  CHECK_THROWS_WITH(build_schedule("pipeline", load_model(kSizes + ",frozen=3"), stages),
                    Catch::Contains("would send no gradient on"));
}

}  // namespace stepcast::frozen_test
