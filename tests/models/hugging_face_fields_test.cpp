#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <string>

#include "core/error.hpp"
#include "core/file.hpp"
#include "models/model.hpp"
#include "tests/models/configured.hpp"

/// Fields of Hugging Face's configurations whose presence, absence or null decides.
namespace stepcast::hugging_face_fields_test {
using tests::Configured;
using tests::llama_like;
namespace {

using nlohmann::json;

/// A configuration of tests/models/reference with three blocks of width 96 and six heads.
json reference(const std::string& name) {
  for (json& one : json::parse(
           read_file(std::string(STEPCAST_SOURCE_DIR) + "/tests/models/reference/configurations.json")))
    if (one["name"] == name) return std::move(one["config"]);
  throw InputError("configurations.json: has no '{}'", name);
}

json with(json configuration, const json& more) {
  configuration.update(more);
  return configuration;
}

}  // namespace

TEST_CASE("transformers 5 lists the kinds of blocks", "[models]") {
  const Configured configured;
  const json lite = reference("glm4_moe_lite");
  CHECK(configured.refusal(lite).empty());
  CHECK_THAT(configured.refusal(with(lite, {{"mlp_layer_types", {"dense", "sparse", "dense"}}})),
             Catch::Contains("'mlp_layer_types'") && Catch::Contains("before sparse ones"));
  CHECK(configured(with(lite, {{"first_k_dense_replace", 3}})).parameter_count() ==
        configured(lite).parameter_count());  // the list decides

  json hybrid = reference("nemotron_h");
  CHECK_THAT(configured.refusal(with(hybrid, {{"layers_block_type", {"mamba", "rwkv"}}})),
             Catch::Contains("layers of \"rwkv\""));
  const auto listed = configured(hybrid).parameter_count();
  hybrid.erase("layers_block_type");
  CHECK(configured(with(hybrid, {{"hybrid_override_pattern", "ME*-"}, {"num_hidden_layers", 4}}))
            .parameter_count() == listed);
}

TEST_CASE("windows follow the field that the configuration's class reads, or are refused", "[models]") {
  const Configured configured;
  for (const auto& [type, usual] : {std::pair("gemma3_text", 6), {"cohere2", 4}, {"exaone4", 4}}) {
    CAPTURE(type);
    json configuration = with(reference(type), {{"sliding_window", 8}, {"layer_types", nullptr}});
    configuration.erase("sliding_window_pattern");
    const auto every = [&](const json& pattern) {
      return configured(with(configuration, {{"sliding_window_pattern", pattern}})).specification;
    };
    CHECK_THAT(configured(configuration).specification,
               Catch::Contains("full_every=" + std::to_string(usual)) && Catch::Contains("window=8"));
    CHECK_THAT(every(2), Catch::Contains("full_every=2") && Catch::Contains("window=8"));
    CHECK_THAT(every(1), !Catch::Contains("window"));
    CHECK_THROWS_WITH(every(0), Catch::Contains("'sliding_window' is 8") && Catch::Contains("irregular"));
    CHECK_THAT(every("LLLG"), Catch::Contains("full_every=4"));
    CHECK_THROWS_WITH(every("LGLG"),
                      Catch::Contains("'sliding_window' is 8") && Catch::Contains("irregular"));
  }
  const json small = with(reference("smollm3"), {{"sliding_window", 8}, {"layer_types", nullptr}});
  CHECK(configured.refusal(small).empty());
  CHECK_THAT(configured.refusal(with(small, {{"use_sliding_window", true}})),
             Catch::Contains("'sliding_window' is 8"));
  CHECK_THAT(
      configured(with(small, {{"use_sliding_window", true},
                              {"layer_types", {"sliding_attention", "sliding_attention", "full_attention"}}}))
          .specification,
      Catch::Contains("full_every=3"));
}

TEST_CASE("the GELU that Phi and GPT-J write out keeps three arrays more in eager code", "[models]") {
  const Configured configured;
  for (const auto& [type, field] : {std::pair("phi", "hidden_act"), {"gptj", "activation_function"}}) {
    CAPTURE(type);
    const json usual = reference(type);
    json missing = usual;
    missing.erase(field);
    for (const json& one : {usual, missing, with(usual, {{field, "gelu_new"}})})
      CHECK_THAT(configured(one).specification, Catch::Contains("gelu_new=1"));
    CHECK_THAT(configured(with(usual, {{field, "gelu"}})).specification, !Catch::Contains("gelu_new"));
  }
  const auto kept = [](const std::string& settings) {
    return load_model("decoder:layers=1,hidden=64,feed_forward=192,sequence=16,vocabulary=100,gated=0" +
                      settings)
        .segments.at(1)
        .saved.size.count();
  };
  CHECK(kept(",eager=1,gelu_new=1") - kept(",eager=1") == Approx(3.0 * 4.0 * 16 * 192));
  CHECK(kept(",gelu_new=1") == kept(""));
}

TEST_CASE("dropout of a configuration is where its class has it", "[models]") {
  struct Case {
    const char* type;
    json more;
    int of_embedding, of_block;  // masks of s h elements
  };
  const Configured configured;
  for (const auto& [type, more, of_embedding, of_block] : std::vector<Case>{
           {"phi", {{"resid_pdrop", 0.1}}, 0, 2},
           {"phi", {{"embd_pdrop", 0.1}}, 1, 0},
           {"phi", {{"attention_dropout", 0.1}}, 0, 0},
           {"gptj", {{"resid_pdrop", 0.1}}, 0, 2},
           {"codegen", {{"resid_pdrop", 0.1}, {"embd_pdrop", 0.2}}, 1, 2},
           {"gpt_bigcode", {{"resid_pdrop", 0.0}, {"embd_pdrop", 0.0}}, 0, 0},
           {"gemma", {{"attention_dropout", 0.1}}, 0, 0},
           {"qwen3_moe", {{"attention_dropout", 0.1}}, 0, 0},
           {"phimoe", {{"hidden_dropout", 0.1}}, 0, 0},
           {"phi3", {{"embd_pdrop", 0.1}}, 0, 0},
           {"phi3", {{"resid_pdrop", 0.1}}, 0, 2},
           {"stablelm", {{"hidden_dropout", 0.1}}, 0, 1},
           {"stablelm", {{"hidden_dropout", 0.1}, {"use_parallel_residual", true}}, 0, 1},
           {"starcoder2", {{"residual_dropout", 0.1}}, 0, 2},
           {"seed_oss", {{"residual_dropout", 0.1}, {"attention_dropout", 0.0}}, 0, 2},
           {"falcon", {{"hidden_dropout", 0.1}}, 0, 1},
           {"falcon new", {{"hidden_dropout", 0.1}}, 0, 1},
           {"falcon", {{"hidden_dropout", 0.1}, {"parallel_attn", false}}, 0, 1},
           {"falcon", {{"attention_dropout", 0.1}, {"parallel_attn", false}}, 0, 1},
           {"bloom", {{"hidden_dropout", 0.1}}, 0, 2},
           {"mpt", {{"resid_pdrop", 0.1}, {"emb_pdrop", 0.1}}, 0, 0},
           {"mpt", {{"attn_config", {{"attn_pdrop", 0.1}, {"alibi", true}}}}, 0, 2},
           {"dbrx", {{"resid_pdrop", 0.1}}, 0, 2},
           {"xglm", {{"dropout", 0.1}, {"attention_dropout", 0.0}}, 1, 2},
           {"biogpt", {{"hidden_dropout_prob", 0.1}, {"attention_probs_dropout_prob", 0.0}}, 1, 2}}) {
    CAPTURE(type, more.dump());
    const Model model = configured(with(reference(type), more));
    const auto elements = static_cast<double>(16 * model.settings.at("hidden"));
    CHECK(model.segments.front().saved.masks.count() == 4.0 * of_embedding * elements);
    CHECK(model.segments.at(1).saved.masks.count() == 4.0 * of_block * elements);
  }
  const json gemma = with(reference("gemma"), {{"attention_dropout", 0.1}});
  CHECK(configured(gemma, ":sequence=16,flash=0").segments.at(1).saved.masks.count() == 4.0 * 6 * 16 * 16);
  for (const char* type : {"xglm", "biogpt"})
    CHECK_THAT(configured.refusal(with(reference(type), {{"activation_dropout", 0.1}})),
               Catch::Contains("'activation_dropout' is 0.1"));
}

TEST_CASE("a missing field has the default of the configuration's class, null has none", "[models]") {
  struct Case {
    const char* type;
    int kv_heads, head_dim;  // 0: as many as heads; hidden/heads
  };
  const Configured configured;
  for (const auto& [type, kv_heads, head_dim] : std::vector<Case>{
           {"gemma", 16, 256},      {"gemma2", 4, 256},   {"gemma3_text", 4, 256}, {"glm", 2, 128},
           {"glm4", 2, 128},        {"helium", 20, 128},  {"seed_oss", 8, 128},    {"ernie4_5", 2, 128},
           {"smollm3", 4, 0},       {"starcoder2", 2, 0}, {"exaone4", 32, 0},      {"stablelm", 32, 0},
           {"phi", 0, 0},           {"granite", 0, 0},    {"qwen2_moe", 16, 0},    {"qwen3_moe", 4, 0},
           {"phimoe", 8, 0},        {"dots1", 32, 0},     {"glm4_moe", 8, 0},      {"gpt_oss", 8, 64},
           {"llama4_text", 8, 128}, {"llama", 0, 0},      {"mistral", 8, 0},       {"ministral", 8, 0},
           {"mixtral", 8, 0},       {"qwen2", 32, 0},     {"qwen3", 32, 128}}) {
    CAPTURE(type);
    json missing = with(reference(type), {{"hidden_size", 640}, {"num_attention_heads", 320}});
    missing.erase("head_dim");
    missing.erase("num_key_value_heads");
    const auto count = [&](int kv, int head) {
      return configured(with(missing, {{"num_key_value_heads", kv}, {"head_dim", head}})).parameter_count();
    };
    const int head = head_dim > 0 ? head_dim : 2;
    CHECK(configured(missing).parameter_count() == count(kv_heads > 0 ? kv_heads : 320, head));
    missing["num_key_value_heads"] = nullptr;
    CHECK(configured(missing).parameter_count() == count(320, head));
  }
  for (const auto& [type, window] : {std::pair("gemma2", 4096),
                                     {"gemma3_text", 4096},
                                     {"cohere2", 4096},
                                     {"olmo3", 4096},
                                     {"exaone4", 4096},
                                     {"gpt_oss", 128},
                                     {"mistral", 4096},
                                     {"ministral", 4096},
                                     {"mixtral", 0},
                                     {"phi3", 0}}) {
    CAPTURE(type);
    json missing = with(reference(type), {{"layer_types", nullptr}, {"sliding_window", nullptr}});
    missing.erase("sliding_window_pattern");
    CHECK_THAT(configured(missing).specification, !Catch::Contains("window="));
    missing.erase("sliding_window");
    const std::string specification = configured(missing).specification;
    CHECK((specification.find("window=" + std::to_string(window)) != std::string::npos) == (window > 0));
  }
  for (const char* type : {"qwen2_vl", "qwen2_5_vl", "qwen2_vl_text", "qwen2_5_vl_text"}) {
    json missing = llama_like(type, 100, 64, 128, 1, 32, 8);
    const std::int64_t count = configured(missing).parameter_count();
    missing.erase("num_key_value_heads");
    CHECK(configured(missing).parameter_count() == count);
  }
  json moe = with(reference("qwen3_moe"), {{"model_type", "qwen3_vl_moe_text"}, {"num_attention_heads", 32}});
  moe.erase("num_key_value_heads");
  CHECK_THAT(configured(moe).specification, Catch::Contains("kv_heads=16"));
  json dbrx = with(reference("dbrx"), {{"attn_config", {{"attn_pdrop", 0}}}});
  CHECK_THAT(configured(dbrx).specification, Catch::Contains("kv_heads=1,"));
}

TEST_CASE("biases and experts of a configuration are where its fields put them", "[models]") {
  const Configured configured;
  const auto count = [&](const json& configuration) { return configured(configuration).parameter_count(); };
  json sparse = reference("qwen2_moe");
  const std::int64_t with_bias = count(sparse);
  CHECK(with_bias - count(with(sparse, {{"qkv_bias", false}})) == 3 * (96 + 2 * 32));
  sparse.erase("qkv_bias");
  CHECK(count(sparse) == with_bias);
  const json llama4 = reference("llama4_text");
  const std::int64_t h = 96, f = 224, dense = 3 * h * 320, experts = 4 * h + (4 + 1) * 3 * h * f;
  const auto listed = [&](const json& blocks) {
    return count(with(llama4, {{"moe_layers", blocks}, {"interleave_moe_layer_step", 2}}));
  };
  CHECK(listed({0, 1, 2}) == count(llama4));
  CHECK(listed(json::array()) == count(llama4) - 3 * (experts - dense));
  CHECK(listed({2}) == count(llama4) - 2 * (experts - dense));
  CHECK(listed(nullptr) == count(llama4) - 2 * (experts - dense));
}

}  // namespace stepcast::hugging_face_fields_test
