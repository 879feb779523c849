#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <string>

#include "core/file.hpp"
#include "models/layer.hpp"
#include "models/model.hpp"
#include "tests/models/configured.hpp"
#include "tests/temporary_folder.hpp"
#include "tests/worlds.hpp"

/// State-space layers and hybrids: parameters of published models and of configurations, costs and patterns.
namespace stepcast::state_space_test {
using namespace worlds;
using tests::Configured;
using tests::parameters_of;
namespace {

using nlohmann::json;

/// Parameters of a layer of Mamba 2 with its norm: h wide, H heads of P, a state of N, G groups, four taps.
std::int64_t mamba(std::int64_t h, std::int64_t H, std::int64_t P, std::int64_t N, std::int64_t G) {
  const std::int64_t d = H * P, c = d + 2 * G * N;
  return h * (d + c + H) + 5 * c + 3 * H + d + d * h + h;
}

json granite(int experts) {
  json layers = json::array();
  for (int i = 0; i < 40; ++i)
    layers.push_back(i == 5 || i == 15 || i == 25 || i == 35 ? "attention" : "mamba");
  return {{"model_type", "granitemoehybrid"},
          {"vocab_size", 100'352},
          {"num_hidden_layers", 40},
          {"layer_types", layers},
          {"num_local_experts", experts},
          {"tie_word_embeddings", true},
          {"mamba_d_head", 64},
          {"mamba_n_groups", 1},
          {"mamba_d_state", 128},
          {"mamba_d_conv", 4},
          {"mamba_chunk_size", 256},
          {"mamba_expand", 2},
          {"position_embedding_type", "nope"}};
}

const json kNano{{"model_type", "nemotron_h"},
                 {"hybrid_override_pattern", "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"},
                 {"num_hidden_layers", 52},
                 {"hidden_size", 2'688},
                 {"num_attention_heads", 32},
                 {"num_key_value_heads", 2},
                 {"head_dim", 128},
                 {"mamba_num_heads", 64},
                 {"mamba_head_dim", 64},
                 {"ssm_state_size", 128},
                 {"n_groups", 8},
                 {"conv_kernel", 4},
                 {"chunk_size", 128},
                 {"expand", 2},
                 {"intermediate_size", 1'856},
                 {"n_routed_experts", 128},
                 {"n_shared_experts", 1},
                 {"num_experts_per_tok", 6},
                 {"moe_intermediate_size", 1'856},
                 {"moe_shared_expert_intermediate_size", 3'712},
                 {"mlp_hidden_act", "relu2"},
                 {"vocab_size", 131'072},
                 {"tie_word_embeddings", false}};

/// The first layer of this kind, and the works of its segment.
const Segment& segment_of(const Model& model, char letter, const std::string& pattern) {
  return model.segments.at(1 + pattern.find(letter));
}

}  // namespace

TEST_CASE("hybrids have the parameters of their formulas and of transformers' classes", "[models]") {
  CHECK(parameters_of("mamba2-2.7b") == 2'702'599'680);  // transformers 4.57, as the next ones
  CHECK(parameters_of("mamba2-2.7b") == 64 * mamba(2'560, 80, 64, 128, 1) + 50'288 * 2'560 + 2'560);
  CHECK(parameters_of("nemotron3-nano-30b-a3b") == 31'577'937'344);
  const std::int64_t h = 2'688;
  const std::int64_t experts = 128 * h + 2 * h * (128 * 1'856 + 3'712) + h,
                     attends = 2 * h * (4'096 + 256) + h;
  CHECK(parameters_of("nemotron3-nano-30b-a3b") ==
        23 * (mamba(h, 64, 64, 128, 8) + experts) + 6 * attends + 2 * 131'072 * h + h);
  const std::int64_t w = 4'096;
  CHECK(parameters_of("nemotron3-super-120b-a12b") ==
        40 * (mamba(w, 128, 64, 128, 8) + 512 * w + std::int64_t{2} * 512 * 1'024 * 2'688 +
              2 * w * (1'024 + 5'376) + w) +
            8 * (2 * w * (4'096 + 256) + w) + 2 * 131'072 * w + w);
  CHECK(parameters_of("nemotron-h-8b") == 24 * (mamba(w, 128, 64, 128, 8) + 2 * w * 21'504 + w) +
                                              4 * (2 * w * (4'096 + 1'024) + w) + 2 * 131'072 * w + w);
  const Configured model{":sequence=256"};
  CHECK(model(kNano).parameter_count() == 31'577'937'344);
  CHECK(Configured{":sequence=256,layers=4"}(kNano).segments.size() == 6);
  json other = kNano;
  other["num_hidden_layers"] = 50;
  CHECK_THROWS_WITH(model(other), Catch::Contains("'hybrid_override_pattern': has 52 letters for 50 layers"));
  other = kNano;
  other["hybrid_override_pattern"] = std::string(52, 'X');
  CHECK_THROWS_WITH(model(other), Catch::Contains("field 'hybrid_override_pattern': block 'X' is not known"));
  json codestral{
      {"model_type", "mamba2"}, {"vocab_size", 32'768},        {"hidden_size", 4'096}, {"num_heads", 128},
      {"head_dim", 64},         {"state_size", 128},           {"n_groups", 8},        {"conv_kernel", 4},
      {"chunk_size", 256},      {"num_hidden_layers", 64},     {"expand", 2},          {"rms_norm", true},
      {"hidden_act", "silu"},   {"tie_word_embeddings", false}};
  CHECK(model(codestral).parameter_count() == 7'285'403'648);
  json bamba = granite(0);
  bamba.erase("layer_types"), bamba.erase("num_local_experts"), bamba.erase("position_embedding_type");
  bamba.update({{"model_type", "bamba"},
                {"vocab_size", 128'256},
                {"hidden_size", 4'096},
                {"intermediate_size", 14'336},
                {"num_hidden_layers", 32},
                {"num_attention_heads", 32},
                {"num_key_value_heads", 8},
                {"attn_layer_indices", {9, 18, 27}},
                {"mamba_n_heads", 128},
                {"tie_word_embeddings", false}});
  CHECK(model(bamba).parameter_count() == 9'780'235'392);
  json tiny = granite(64);
  tiny.update({{"hidden_size", 1'536},
               {"intermediate_size", 512},
               {"num_attention_heads", 12},
               {"num_key_value_heads", 4},
               {"num_experts_per_tok", 6},
               {"shared_intermediate_size", 1'024},
               {"mamba_n_heads", 48}});
  CHECK(model(tiny).parameter_count() == 6'939'037'248);
  json micro = granite(0);
  micro.update({{"hidden_size", 2'048},
                {"intermediate_size", 8'192},
                {"num_attention_heads", 32},
                {"num_key_value_heads", 8},
                {"num_experts_per_tok", 0},
                {"shared_intermediate_size", 8'192},
                {"mamba_n_heads", 64}});
  CHECK(model(micro).parameter_count() == 3'191'396'096);
  CHECK_THAT(error_of([&] {
               (void)model({{"model_type", "jamba"}});
             }),
             Catch::Contains("state-space layers"));
}

TEST_CASE("a state-space layer costs what its kernels compute, move and keep", "[models]") {
  const std::string pattern = "M*-E";
  const Model model = load_model(
      "decoder:pattern=M*-E,hidden=512,heads=8,feed_forward=1024,gated=0,squared=1,experts=8,active=2,"
      "expert_gated=0,mamba_head=64,mamba_heads=16,mamba_groups=2,state=128,sequence=1024,vocabulary=1000");
  const double s = 1'024, h = 512, H = 16, d = 1'024, N = 128, G = 2, Q = 128, c = d + 2 * G * N,
               all = d + c + H;
  const Segment& scan = segment_of(model, 'M', pattern);
  const double norms = 4 * s * h + 4 * s * d;
  CHECK(scan.flop.forward.count() == Approx(2 * s * h * all + 2 * s * d * h + norms + 8 * s * c +
                                            2 * s * (Q * G * N + Q * d / 2 + 2 * N * d)));
  CHECK(scan.flop.backward.count() == Approx(2 * scan.flop.forward.count()));
  // The norm's input is the block's and is not counted; its output, what in_proj returns, y, the norm's input
  // and output, the block's output, and numbers of both norms.
  CHECK(scan.saved.size.count() == Approx(4 * s * (h + all + d + d + d + h) + 4 * s * (1 + G)));
  const Segment& dense = segment_of(model, '-', pattern);
  CHECK(dense.flop.forward.count() == Approx(4 * s * h * 1'024 + s * 1'024 + 4 * s * h));
  const Segment& experts = segment_of(model, 'E', pattern);
  CHECK(experts.flop.forward.count() == Approx(2 * s * h * 8 + 2 * 4 * s * h * 1'024 + 4 * s * h));
  const Model latent = load_model(
      "decoder:pattern=E,hidden=512,heads=8,feed_forward=1024,experts=8,active=2,expert_gated=0,latent=128,"
      "sequence=1024,vocabulary=1000");
  CHECK(latent.segments.at(1).flop.forward.count() ==
        Approx(2 * s * h * 8 + 2 * 4 * s * 128 * 1'024 + 4 * s * h * 128 + 4 * s * h));
}

TEST_CASE("experts keep what the backward of their activation needs", "[models]") {
  const std::string common =
      "decoder:pattern=E,hidden=512,heads=8,feed_forward=1024,experts=8,active=2,sequence=1024,vocabulary="
      "1000";
  const auto saved = [&](const std::string& settings) {
    return load_model(common + settings).segments.at(1).saved.size.count();
  };
  const double inner = 4.0 * 1'024 * 2 * 1'024;  // bytes of the width f of all rows
  const std::string gelu = ",expert_gated=0", squared = ",expert_gated=0,squared=1",
                    engine = ",transformer_engine=1";
  CHECK(saved("") - saved(gelu) == Approx(2 * inner));  // four and two times f
  CHECK(saved(squared) == saved(gelu));
  // Of gates both inputs and the product; GELU's input, its output and the product; of squared ReLU, one
  // kernel with the product, input and output.
  CHECK(saved(engine) == Approx(saved(gelu + engine)));
  CHECK(saved(gelu + engine) - saved(squared + engine) == Approx(inner));
  CHECK_THROWS_WITH(load_model(common + ",squared=1"), Catch::Contains("no effect on experts with gates"));
  CHECK_THROWS_WITH(load_model("decoder:pattern=ME"), Catch::Contains("set experts=N"));
  CHECK_THROWS_WITH(load_model("gpt:kv_rank=32,context=2"), Catch::Contains("latent attention"));
}

TEST_CASE("ranks share the heads and groups of state-space layers", "[models]") {
  const std::string model =
      "decoder:pattern=MM,hidden=512,heads=8,feed_forward=1024,mamba_heads=16,mamba_groups=2,sequence=1024,"
      "vocabulary=1000";
  const Model whole = load_model(model), half = load_model(model + ",tensor=2");
  std::int64_t shared = 0;
  for (const Parameter& one : half.parameters) shared += (one.shared_dimension < 0 ? 1 : 2) * one.numel();
  CHECK(shared == whole.parameter_count());
  CHECK(half.segments.at(1).flop.forward < whole.segments.at(1).flop.forward);
  CHECK_THAT(error_of([&] { (void)load_model(model + ",tensor=4"); }), Catch::Contains("groups 2"));
  CHECK_THAT(error_of([&] { (void)load_model(model + ",context=2"); }), Catch::Contains("context=1"));
}

TEST_CASE("patterns give each block one sublayer", "[models]") {
  CHECK(load_model("nemotron-h-8b:layers=9").segments.size() == 11);
  CHECK(load_model("mamba2-2.7b:layers=2").segments.size() == 4);
  CHECK_THAT(error_of([] { (void)load_model("nemotron-h-8b:layers=99"); }), Catch::Contains("1 to 52"));
  CHECK_THAT(error_of([] { (void)load_model("decoder:pattern=MX"); }), Catch::Contains("'X'"));
  CHECK_THAT(error_of([] { (void)load_model("llama:pattern=MM"); }), Catch::Contains("setting"));
}

TEST_CASE("the recomputation of experts repeats their work and their all-to-alls", "[models]") {
  const std::string pattern = "ME";
  const Model model = load_model(
      "decoder:pattern=ME,hidden=512,heads=8,feed_forward=1024,experts=8,active=2,expert=4,transformer_"
      "engine=1,"
      "sequence=1024,vocabulary=1000");
  const Model again = recomputing(model, *recomputed_part("moe+layernorm"));
  const Segment &before = segment_of(model, 'E', pattern), &after = segment_of(again, 'E', pattern);
  CHECK(after.saved.size < 0.5 * before.saved.size);
  CHECK((after.saved.size + after.recomputed.saved.size).count() == Approx(before.saved.size.count()));
  Flop repeated;
  for (const LayerWork& work : after.recomputed.work) repeated += work.forward();
  CHECK(repeated.count() == Approx(before.flop.forward.count()));
  CHECK(after.collectives.size() == before.collectives.size() + 2);
  CHECK_THAT(
      error_of([&] { (void)recomputing(load_model("nemotron-h-8b:layers=2"), RecomputedPart::kOperations); }),
      Catch::Contains("state-space"));
}

}  // namespace stepcast::state_space_test
