#include <algorithm>
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "core/error.hpp"
#include "models/layer.hpp"
#include "models/model.hpp"
#include "sim/strategies/strategy.hpp"
#include "tests/temporary_folder.hpp"
#include "tests/worlds.hpp"

/// DeepSeek-V3: its configuration, its parameters, and what multi-head latent attention costs.
namespace stepcast::latent_attention_test {
using namespace worlds;
namespace {

using nlohmann::json;

/// As published, with what changes nothing left out but for some fields.
json published() {
  return {{"model_type", "deepseek_v3"},
          {"architectures", {"DeepseekV3ForCausalLM"}},
          {"attention_bias", false},
          {"attention_dropout", 0.0},
          {"ep_size", 1},
          {"first_k_dense_replace", 3},
          {"hidden_act", "silu"},
          {"hidden_size", 7'168},
          {"intermediate_size", 18'432},
          {"kv_lora_rank", 512},
          {"moe_intermediate_size", 2'048},
          {"moe_layer_freq", 1},
          {"n_group", 8},
          {"n_routed_experts", 256},
          {"n_shared_experts", 1},
          {"norm_topk_prob", true},
          {"num_attention_heads", 128},
          {"num_experts_per_tok", 8},
          {"num_hidden_layers", 61},
          {"num_key_value_heads", 128},
          {"num_nextn_predict_layers", 1},
          {"q_lora_rank", 1'536},
          {"qk_nope_head_dim", 128},
          {"qk_rope_head_dim", 64},
          {"quantization_config", {{"quant_method", "fp8"}}},
          {"rope_scaling", {{"type", "yarn"}, {"factor", 40}}},
          {"routed_scaling_factor", 2.5},
          {"scoring_func", "sigmoid"},
          {"tie_word_embeddings", false},
          {"topk_group", 4},
          {"topk_method", "noaux_tc"},
          {"v_head_dim", 128},
          {"vocab_size", 129'280}};
}

Model configured(const json& configuration) {
  const TemporaryFolder folder;
  return load_model("hf:" + folder.write("config.json", configuration.dump()) + ":sequence=16");
}

std::string refusal(const json& more) {
  json changed = published();
  changed.update(more);
  return error_of([&] { return configured(changed); });
}

const FusedAttention* attention_of(const LayerWork& work) {
  for (const Kernel& kernel : work.kernels)
    if (kernel.attention() != nullptr) return kernel.attention();
  return nullptr;
}

}  // namespace

TEST_CASE("DeepSeek-V3 has 671,026,419,200 numbers: parameters, and the biases of its routers' choice",
          "[models]") {
  const std::int64_t h = 7'168, a = 128, q = 1'536, c = 512, n = 128, r = 64, w = 128;
  const std::int64_t attention = h * q + q + q * a * (n + r) + h * (c + r) + c + c * a * (n + w) + a * w * h;
  const std::int64_t dense = 3 * h * 18'432, experts = 256 * h + (256 + 1) * 3 * h * 2'048;
  const std::int64_t sum = 2 * 129'280 * h + 61 * (attention + 2 * h) + 3 * dense + 58 * experts + h;
  CHECK(sum == 671'026'404'352);
  for (const Model& model : {configured(published()), load_model("deepseek-v3:sequence=16")}) {
    CHECK(model.parameter_count() == sum);
    std::int64_t buffers = 0;  // moved by no gradient: no parameters of transformers' class either
    for (const Buffer& buffer : model.buffers) buffers += numel(buffer.shape);
    CHECK(buffers == 58 * 256);
    CHECK(model.parameter_count() + buffers == 671'026'419'200);
  }
  CHECK(load_model("deepseek-v3").segments.size() == 63);
  CHECK(load_model("deepseek-v2").parameter_count() == 235'741'434'880);
}

TEST_CASE("a latent of queries may be missing, fields that matter are refused", "[models]") {
  json without = published();
  without["q_lora_rank"] = nullptr;
  const std::int64_t h = 7'168, q = 1'536, all = 128 * (128 + 64);
  CHECK(configured(published()).parameter_count() - configured(without).parameter_count() ==
        61 * (h * q + q + q * all - h * all));
  without.erase("q_lora_rank");
  CHECK_THROWS_WITH(configured(without), Catch::Contains("'q_lora_rank' is missing"));
  CHECK(refusal(json::object()).empty());
  CHECK_THAT(refusal({{"moe_layer_freq", 2}}), Catch::Contains("'moe_layer_freq' is 2"));
  CHECK_THAT(refusal({{"scoring_func", "softmax"}}), Catch::Contains("'scoring_func' is softmax"));
  CHECK_THAT(refusal({{"index_topk", 2'048}}), Catch::Contains("'index_topk' (2048) is not known"));
  CHECK_THAT(refusal({{"topk_group", 9}}), Catch::Contains("9 of 8 groups"));
  CHECK_THAT(refusal({{"n_group", 7}}), Catch::Contains("experts 256 cannot be divided into 7 groups"));
}

TEST_CASE("a block of latent attention costs its GEMMs and half of the scores, and keeps what grows as s",
          "[models]") {
  const double s = 64, h = 256, a = 4, q = 96, c = 48, n = 32, r = 16, w = 24, f = 128;
  const std::string sizes =
      "deepseek:layers=2,hidden=256,heads=4,q_rank=96,kv_rank=48,nope=32,rope=16,value=24,vocabulary=100,"
      "dense_feed_forward=128,experts=4,active=2,feed_forward=8,sequence=";
  const Segment block = load_model(sizes + "64").segments.at(1);
  const double products =
      2 * s * (h * q + q * a * (n + r) + h * (c + r) + c * a * (n + w) + a * w * h + 3 * h * f);
  const double rest = 4 * s * (q + c) + 2 * 4 * s * h + 2 * s * f;  // norms; SiLU and the gate
  CHECK(block.flop.forward == Flop(products + s * s * a * (n + r + w) + rest));
  CHECK(load_model(sizes + "64,flash=0").segments.at(1).flop.forward ==
        Flop(products + 2 * s * s * a * (n + r + w) + rest));
  CHECK(load_model(sizes + "128").segments.at(1).saved.size == 2.0 * block.saved.size);
  // Both norms of the block with x and a number, latents twice and a number, q, k, what holds v, a number per
  // head; the attention's output; gate, SiLU, up and their product.
  const double kept = 4 * h + 2 + 2 * (q + c) + r + 2 + 2 * a * (n + r) + a * (n + w) + a + a * w + 4 * f;
  CHECK(block.saved.size == Bytes(4 * s * kept));
  const auto fused = std::find_if(block.work.begin(), block.work.end(),
                                  [](const LayerWork& work) { return attention_of(work) != nullptr; });
  REQUIRE(fused != block.work.end());
  CHECK(attention_of(*fused)->head_size == n + r);
  CHECK(attention_of(*fused)->value_size == w);
  // The backward recomputes the scores, but not the weighted values.
  CHECK(fused->recomputed() == Flop(s * s * a * (n + r)));
}

TEST_CASE("ranks with parts of the sequence make latents of their own positions, and gather these",
          "[models]") {
  const double s = 64, h = 256, c = 48, r = 16, t = 4;
  for (const double q : {96.0, 0.0}) {
    const std::string sizes =
        "deepseek:layers=2,hidden=256,heads=4,kv_rank=48,nope=32,rope=16,value=24,vocabulary=100,sequence=64,"
        "dense_feed_forward=128,experts=4,active=2,feed_forward=8,q_rank=" +
        std::to_string(static_cast<int>(q));
    const Model whole = load_model(sizes),
                again = load_model(sizes + ",tensor=4,sequence_parallel=1,gather_again=1"),
                part = load_model(sizes + ",tensor=4,sequence_parallel=1");
    CHECK(t * part.segments[1].flop.forward.count() == Approx(whole.segments[1].flop.forward.count()));
    CHECK(part.parameter_count() == again.parameter_count());
    const double gathered = 4.0 * s * ((q > 0.0 ? q : h) + c + r);
    const auto sent = [&](const Model& model, const std::string& name, bool backward) {
      for (const LayerCollective& one : model.collectives)
        if (one.name == "model.layers.0." + name && one.backward == backward) return one.per_sample.count();
      return 0.0;
    };
    CHECK(sent(part, "self_attn", false) == gathered);
    CHECK(sent(part, "self_attn", true) == gathered);
    CHECK(sent(part, "self_attn.o_proj.regather", true) == 0.0);
    CHECK(sent(again, "self_attn.o_proj.regather", true) == gathered);
    // With the latents gathered again those of the own positions stay in place of all.
    const double mlp = 4.0 * s * h * (1.0 - 1.0 / t);
    CHECK((part.segments[1].saved.size - again.segments[1].saved.size).count() ==
          Approx(mlp + gathered - 4.0 * s / t * (q + c)));
    // Ranks sum the gradients of what they have whole. Gradients of these come last.
    const std::vector<int>& ready = part.segments[1].parameters;
    std::size_t first = 0;
    for (std::size_t i = 0; i < ready.size(); ++i)
      if (part.parameters[static_cast<std::size_t>(ready[i])].name.ends_with("kv_a_layernorm.weight"))
        first = i;
    CHECK(ready.size() - first == (q > 0.0 ? 5 : 3));
  }
}

TEST_CASE("blocks before the first experts are dense; none need be, and all may be", "[models]") {
  const std::string model =
      "deepseek:layers=3,hidden=128,vocabulary=100,sequence=16,experts=4,active=2,feed_forward=8,dense=";
  const auto kinds = [](const Model& of) {
    std::string text;
    for (const Segment& segment : of.segments)
      text += segment.layers.back().body.empty() ? '-' : segment.layers.back().body.back().kind.front();
    return text;
  };
  CHECK(kinds(load_model(model + "0")) == "-eee-");
  CHECK(kinds(load_model(model + "2")) == "-lle-");
  CHECK(load_model(model + "2").segments.at(3).name == "layer2");
  CHECK(kinds(load_model(model + "3")) == "-lll-");
  CHECK_FALSE(load_model(model + "3").has_experts());
  CHECK(load_model(model + "3,mtp=1").segments.size() == 6);
  CHECK_THROWS_WITH(load_model(model + "4"), Catch::Contains("at most 3, found 4 (dense)"));
  CHECK(refusal({{"first_k_dense_replace", 61}}).empty());
  CHECK_THAT(refusal({{"first_k_dense_replace", 62}}), Catch::Contains("at most 61, found 62 (dense)"));
}

/// The checkpoint has 671 and 14 billion; its module has copies of embedding and head, 2 x 927 million.
TEST_CASE("a module of multi-token prediction has a block, a projection and three norms of its own") {
  constexpr std::int64_t kHidden = 7'168, kMain = 671'026'404'352;
  const Model without = load_model("deepseek-v3:sequence=16"),
              with = load_model("deepseek-v3:sequence=16,mtp=1"),
              shared = load_model("deepseek-v3:sequence=16,mtp=1,tensor=4,sequence_parallel=1");
  const Segment &module = with.segments[with.segments.size() - 2], &block = with.segments[61];
  CHECK(without.parameter_count() == kMain);
  CHECK(with.trained_count(module) == with.trained_count(block) + 2 * kHidden * kHidden + 3 * kHidden);
  CHECK(with.parameter_count() == kMain + with.trained_count(module));
  CHECK(with.trained_count(module) == 11'610'067'968);
  CHECK(with.trained_count(module) + 2 * 129'280 * kHidden == 13'463'426'048);  // "14B" in the checkpoint
  std::set<std::string> names;
  for (const int index : module.parameters) names.insert(with.parameters[index].name);
  for (const char* name : {"enorm", "hnorm", "eh_proj", "shared_head.norm", "self_attn.o_proj"})
    CHECK(names.contains("model.layers.61." + std::string(name) + ".weight"));
  CHECK(module.tied.size() == 1);
  CHECK(with.parameters[module.tied.front()].name == "model.embed_tokens.weight");
  // Flop of the projection, the block, and the head once more.
  const auto forward = [](const Segment& one) { return one.flop.forward.count(); };
  const double gemm = 2.0 * 16 * kHidden;
  CHECK(forward(module) == Approx(forward(block) + gemm * 2 * kHidden).epsilon(1e-4));
  CHECK(forward(with.segments.back()) - forward(without.segments.back()) == Approx(gemm * 129'280));
  CHECK(with.segments.back().saved.size.count() - without.segments.back().saved.size.count() >=
        4.0 * 16 * 129'280);
  CHECK(shared.segments.back().flop.forward.count() ==
        Approx(forward(with.segments.back()) / 4).epsilon(1e-3));
}

TEST_CASE(
    "a pipeline has modules of multi-token prediction on its last stage, and sums the embedding there") {
  const std::string small =
      "deepseek:layers=4,dense=1,hidden=256,heads=2,kv_rank=64,nope=64,rope=32,value=64,experts=4,active=2,"
      "feed_forward=128,sequence=16,vocabulary=512,mtp=2";
  const Model model = load_model(small);
  const Schedule schedule = build_schedule("pipeline", model, training(2, 2, {{"schedule", "1f1b"}}, 2));
  CHECK(schedule.options.at("split") == "2-2");
  const Program& last = schedule.program(1);
  CHECK(last.segments == std::vector{3, 4, 5, 6, 7});
  int sums = 0;
  for (const Op& op : last.ops)
    if (op.name == "all_reduce/model.embed_tokens.weight") ++sums;
  CHECK(sums == 1);
  for (const char* strategy : {"ddp", "fsdp"}) {
    const Schedule found = build_schedule(strategy, model, training(2, 2));
    CHECK(found.program(0).segments.size() == 8);
  }
}

}  // namespace stepcast::latent_attention_test
