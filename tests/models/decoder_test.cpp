#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "core/error.hpp"
#include "core/file.hpp"
#include "models/hugging_face.hpp"
#include "models/hugging_face_rules.hpp"
#include "models/model.hpp"
#include "tests/models/configured.hpp"
#include "tests/temporary_folder.hpp"
#include "tests/worlds.hpp"

/// Today's decoders: parameters of shipped models and of configurations, and what attention and experts cost.
namespace stepcast::decoder_test {
using namespace worlds;
using tests::Configured;
using tests::llama_like;
using tests::parameters_of;
namespace {

using nlohmann::json;

const Segment& block(const Model& model) { return model.segments.at(1); }

}  // namespace

TEST_CASE("shipped decoders have the parameters that their authors publish", "[models]") {
  for (const auto& [name, count] : std::map<std::string, std::int64_t>{
           {"llama3-8b", 8'030'261'248},       {"llama3-70b", 70'553'706'496},
           {"llama3-405b", 405'853'388'800},   {"llama2-7b", 6'738'415'616},
           {"llama2-70b", 68'976'648'192},     {"mistral-7b", 7'241'732'096},
           {"mixtral-8x7b", 46'702'792'704},   {"qwen2-7b", 7'615'616'512},
           {"qwen3-8b", 8'190'735'360},        {"qwen3-32b", 32'762'123'264},
           {"qwen3-30b-a3b", 30'532'122'624},  {"qwen3-235b-a22b", 235'093'634'560},
           {"gpt-oss-20b", 20'914'757'184},    {"gpt-oss-120b", 116'829'156'672},
           {"kimi-k2", 1'026'408'209'408},     {"deepseek-v2-lite", 15'706'484'224},
           {"llama3.2-1b", 1'235'814'400},     {"llama3.2-3b", 3'212'749'824},
           {"gemma3-27b", 27'009'346'304},     {"mistral-small-24b", 23'572'403'200},
           {"mixtral-8x22b", 140'620'634'112}, {"gpt2-small", 124'439'808},
           {"mpt-7b", 6'649'286'656},          {"opt-350m", 331'196'416}}) {
    CAPTURE(name);
    CHECK(parameters_of(name) == count);
  }
  // V h + s h + L (12 h^2 + 13 h) + 2 h
  const std::int64_t h = 12'288;
  CHECK(parameters_of("gpt3-175b") == 51'200 * h + 2'048 * h + 96 * (12 * h * h + 13 * h) + 2 * h);
}

TEST_CASE("configurations of Hugging Face have the parameters of their classes", "[models]") {
  const Configured model;
  const auto count = [&](const json& configuration) { return model(configuration).parameter_count(); };
  CHECK(count(llama_like("llama", 128'256, 4'096, 14'336, 32, 32, 8)) == 8'030'261'248);
  CHECK(count(llama_like("llama", 128'256, 8'192, 28'672, 80, 64, 8)) == 70'553'706'496);
  CHECK(count(llama_like("llama", 128'256, 2'048, 8'192, 16, 32, 8, true)) == 1'235'814'400);
  CHECK(count(llama_like("llama", 32'000, 4'096, 11'008, 32, 32, 32)) == 6'738'415'616);
  CHECK(count(llama_like("mistral", 32'000, 4'096, 14'336, 32, 32, 8)) == 7'241'732'096);
  json nemo = llama_like("mistral", 131'072, 5'120, 14'336, 40, 32, 8);
  nemo["head_dim"] = 128;
  CHECK(count(nemo) == 12'247'782'400);
  CHECK(count(llama_like("qwen2", 152'064, 3'584, 18'944, 28, 28, 4)) == 7'615'616'512);
  CHECK(count(llama_like("qwen2", 151'936, 896, 4'864, 24, 14, 2, true)) == 494'032'768);
  json qwen3 = llama_like("qwen3", 151'936, 1'024, 3'072, 28, 16, 8, true);
  qwen3["head_dim"] = 128;
  CHECK(count(qwen3) == 596'049'920);
  json mixtral = llama_like("mixtral", 32'000, 4'096, 14'336, 32, 32, 8);
  mixtral.update({{"num_local_experts", 8}, {"num_experts_per_tok", 2}});
  CHECK(count(mixtral) == 46'702'792'704);
  json sparse = llama_like("qwen3_moe", 151'936, 2'048, 6'144, 48, 32, 4);
  sparse.update(
      {{"head_dim", 128}, {"moe_intermediate_size", 768}, {"num_experts", 128}, {"num_experts_per_tok", 8}});
  CHECK(count(sparse) == 30'532'122'624);
  CHECK(count({{"model_type", "gpt2"},
               {"n_layer", 12},
               {"n_embd", 768},
               {"n_head", 12},
               {"vocab_size", 50'257},
               {"n_positions", 1'024}}) == 124'439'808);
  CHECK(count({{"model_type", "gpt_neo"},
               {"num_layers", 32},
               {"hidden_size", 2'560},
               {"num_heads", 20},
               {"vocab_size", 50'257},
               {"max_position_embeddings", 2'048}}) == 2'651'307'520);
  CHECK(count({{"model_type", "gpt_neox"},
               {"num_hidden_layers", 44},
               {"hidden_size", 6'144},
               {"num_attention_heads", 64},
               {"vocab_size", 50'432},
               {"intermediate_size", 24'576}}) == 20'554'567'680);
  CHECK(count({{"model_type", "opt"},
               {"num_hidden_layers", 32},
               {"hidden_size", 4'096},
               {"num_attention_heads", 32},
               {"vocab_size", 50'272},
               {"ffn_dim", 16'384},
               {"max_position_embeddings", 2'048}}) == 6'658'473'984);
  CHECK(count({{"model_type", "bert"},
               {"num_hidden_layers", 24},
               {"hidden_size", 1'024},
               {"num_attention_heads", 16},
               {"vocab_size", 30'522},
               {"intermediate_size", 4'096},
               {"max_position_embeddings", 512}}) == 335'141'888);
}

TEST_CASE("a configuration is the family with its settings, and load_model reads that again", "[models]") {
  const Configured configured;
  const Model model = configured(llama_like("llama", 1'000, 64, 128, 2, 4, 2));
  CHECK(model.specification.starts_with("llama:"));
  CHECK(load_model(model.specification).specification == model.specification);
  CHECK(load_model(model.specification).forward_flop() == model.forward_flop());
  CHECK(configured(llama_like("llama", 1'000, 64, 128, 2, 4, 2), ":sequence=16,layers=3").segments.size() ==
        5);
}

TEST_CASE("settings of a configuration that are not modelled are errors that name them", "[models]") {
  const Configured model;
  const json good = llama_like("mistral", 1'000, 64, 128, 2, 4, 2);
  const auto with = [&](const json& more) {
    json changed = good;
    changed.update(more);
    return model.refusal(changed);
  };
  CHECK(with(json::object()).empty());
  CHECK(with({{"rope_theta", 1e6}, {"architectures", {"MistralForCausalLM"}}}).empty());
  CHECK_THAT(with({{"hidden_act", "gelu"}}),
             Catch::Contains("field 'hidden_act' is gelu") && Catch::Contains("silu"));
  CHECK(with({{"sliding_window", 8}}).empty());
  CHECK_THAT(with({{"sliding_window", 8}, {"layer_types", {"full_attention", "sliding_attention"}}}),
             Catch::Contains("'sliding_window' is 8") && Catch::Contains("sequence=16"));
  CHECK_THAT(with({{"layer_types", {"full_attention", "linear_attention"}}}),
             Catch::Contains("linear_attention"));
  CHECK_THAT(with({{"num_hidden_layers", 3}, {"layer_types", {"full_attention", "full_attention"}}}),
             Catch::Contains("'layer_types' has 2 kinds, num_hidden_layers is 3"));
  CHECK(with({{"sliding_window", 4096}}).empty());
  CHECK_THAT(with({{"memory_layers", 3}}), Catch::Contains("'memory_layers' (3) is not known for mistral"));
  CHECK(with({{"memory_layers", nullptr}, {"final_logit_softcapping", 30.0}, {"some_tool", {{"key", 1}}}})
            .empty());
  CHECK_THAT(with({{"hidden_size", nullptr}}), Catch::Contains("'hidden_size' is missing"));
  CHECK_THAT(with({{"num_hidden_layers", "two"}}), Catch::Contains("expected a whole number, found \"two\""));
  CHECK_THAT(with({{"model_type", "mistrall"}}), Catch::Contains("did you mean 'mistral'"));
  CHECK_THAT(model.refusal(good, ""), Catch::Contains("the sequence length is missing"));
  CHECK_THAT(model.refusal(good, ":sequnce=16"), Catch::Contains("the sequence length is missing"));
  CHECK_THAT(model.refusal({{"hidden_size", 3}}), Catch::Contains("'model_type' is missing"));
  CHECK_THAT(model.refusal({{"model_type", "gpt2"},
                            {"n_layer", 1},
                            {"n_embd", 64},
                            {"n_head", 1},
                            {"vocab_size", 50},
                            {"n_positions", 32},
                            {"embd_pdrop", 0.1},
                            {"attn_pdrop", 0.2}}),
             Catch::Contains("'attn_pdrop' is 0.2"));
}

TEST_CASE("configurations have the parameters of their classes in transformers", "[models]") {
  const json all = json::parse(
      read_file(std::string(STEPCAST_SOURCE_DIR) + "/tests/models/reference/configurations.json"));
  const TemporaryFolder folder;
  std::set<std::string> types;
  for (const json& one : all) {
    CAPTURE(one["name"].get<std::string>());
    const std::string path = folder.write("config.json", one["config"].dump());
    const HuggingFaceModel configured =
        read_configuration(path, {.file = path, .overrides = {{"sequence", "32"}}});
    CHECK(configured.obstacles.empty());
    CHECK(load_model("hf:" + path + ":sequence=32").parameter_count() ==
          one["parameters"].get<std::int64_t>());
    types.insert(configured.type);
  }
  CHECK(types.size() >= 75);
  for (const std::string& type : configuration_types()) {  // every table is well-formed
    const ConfigurationRules rules = rules_of(type, {});
    if (rules.refused.empty()) CHECK_NOTHROW(load_model(rules.model));
  }
}

TEST_CASE("a multimodal configuration is read as its text model, and Infinity as no number", "[models]") {
  const TemporaryFolder folder;
  json text = llama_like("qwen2", 1'000, 64, 128, 2, 4, 2);
  const std::string path = folder.write(
      "config.json",
      json{{"model_type", "seen"}, {"text_config", text}, {"vision_config", {{"depth", 32}}}}.dump());
  const HuggingFaceModel model = read_configuration(path, {});
  CHECK(model.type == "qwen2");
  REQUIRE(model.assumed.size() == 1);
  CHECK_THAT(model.assumed[0], Catch::Contains("text model") && Catch::Contains("vision_config"));
  text["vision_config"] = {{"depth", 32}, {"hidden_size", 8}};
  text["quantization_config"] = {{"quant_method", "fp8"}};
  for (const char* type : {"qwen2_vl", "qwen2_5_vl"}) {
    text["model_type"] = type;
    const HuggingFaceModel flat = read_configuration(folder.write("flat.json", text.dump()), {});
    REQUIRE(flat.assumed.size() == 1);
    CHECK_THAT(flat.assumed[0], Catch::EndsWith("the text model alone; left out: vision_config"));
    CHECK(flat.ignored == std::vector<std::string>{"fields without effect: quantization_config"});
  }
  text.erase("vision_config");
  text.erase("tie_word_embeddings");
  const Configured configured;
  const std::int64_t untied = configured(text).parameter_count();
  // transformers 5, modeling_utils.py: the configuration of the class with the head ties
  const std::int64_t tied = untied - 1'000 * 64;
  CHECK(configured({{"text_config", text}, {"tie_word_embeddings", true}}).parameter_count() == tied);
  text["tie_word_embeddings"] = true;
  CHECK(configured({{"text_config", text}, {"tie_word_embeddings", false}}).parameter_count() == tied);
  const std::string limits =
      folder.write("limits.json",
                   R"({"model_type": "falcon_h1", "time_step_limit": [0.0, Infinity], "other": -Infinity})");
  CHECK_THROWS_WITH(read_configuration(limits, {}),
                    Catch::Contains("'falcon_h1' is not computed yet") && Catch::Contains("Mamba 2"));
  text.erase("model_type");
  text["architectures"] = {"LlamaForCausalLM"};
  const HuggingFaceModel named = read_configuration(folder.write("named.json", text.dump()), {});
  CHECK(named.type == "llama");
  CHECK_THAT(named.assumed.at(0), Catch::Contains("architectures"));
  CHECK(named.assumed.size() == 1);
  text["architectures"] = {"LlamaForSequenceClassification"};
  CHECK_THAT(read_configuration(folder.write("head.json", text.dump()), {}).assumed.at(1),
             Catch::Contains("family llama does, not as [\"LlamaForSequenceClassification\"]"));
}

TEST_CASE("blocks that differ are groups of a model file, which is the model again", "[models]") {
  const TemporaryFolder folder;
  json configuration = llama_like("qwen2_moe", 1'000, 64, 128, 6, 4, 2);
  configuration.update({{"num_experts", 4},
                        {"num_experts_per_tok", 2},
                        {"moe_intermediate_size", 32},
                        {"shared_expert_intermediate_size", 64},
                        {"decoder_sparse_step", 2}});
  const std::string path = folder.write("config.json", configuration.dump());
  const Model model = load_model("hf:" + path + ":sequence=16");
  CHECK(model.specification == "hf:" + path + ":sequence=16");
  REQUIRE(model.segments.size() == 8);
  CHECK(model.segments[1].parameters.size() == model.segments[3].parameters.size());
  CHECK(model.segments[1].parameters.size() < model.segments[2].parameters.size());
  const HuggingFaceModel configured =
      read_configuration(path, {.file = path, .overrides = {{"sequence", "16"}}});
  CHECK(configured.blocks.size() == 6);
  const Model written = load_model(folder.write("mine.yaml", model_text(configured)));
  CHECK(written.parameter_count() == model.parameter_count());
  CHECK(written.forward_flop() == model.forward_flop());
}

TEST_CASE("a decoder without its variants costs what Llama costs, and parallel blocks the same", "[models]") {
  const std::string sizes =
      ":layers=2,hidden=256,heads=4,kv_heads=2,feed_forward=512,sequence=64,vocabulary=100";
  const Model decoder = load_model("decoder" + sizes), llama = load_model("llama" + sizes);
  CHECK(decoder.parameter_count() == llama.parameter_count());
  CHECK(decoder.forward_flop() == llama.forward_flop());
  CHECK(block(decoder).saved.size == block(llama).saved.size);
  const Model parallel = load_model("decoder" + sizes + ",parallel=1");
  CHECK(parallel.parameter_count() == llama.parameter_count());
  CHECK(block(parallel).flop.forward == block(decoder).flop.forward);
  for (const char* more :
       {",tensor=2", ",tensor=2,sequence_parallel=1", ",tensor=2,parallel=1", ",context=2,ring=1"})
    CHECK(load_model("decoder" + sizes + more).forward_flop().count() < 0.7 * llama.forward_flop().count());
}

TEST_CASE("windows of a configuration are settings of the model", "[models]") {
  const Configured configured;
  json gemma = llama_like("gemma2", 1'000, 64, 128, 4, 4, 2);
  gemma.update({{"head_dim", 16}, {"sliding_window", 8}});
  CHECK_THAT(configured(gemma).specification, Catch::Contains("window=8") && Catch::Contains("full_every=2"));
  gemma["sliding_window"] = 16;  // as long as the sequence: all keys are seen
  CHECK(configured(gemma).forward_flop() == configured(gemma, ":sequence=16,window=0").forward_flop());
  CHECK_THROWS_WITH(configured(gemma, ":sequence=32,flash=0"), Catch::Contains("a window needs"));
  CHECK_NOTHROW(configured(gemma, ":sequence=16,flash=0"));
  const std::string every = ":layers=4,hidden=64,heads=4,sequence=16,vocabulary=1000,window=8";
  CHECK(load_model("decoder" + every).forward_flop() == load_model("llama" + every).forward_flop());
  CHECK(load_model("decoder" + every).forward_flop() <
        load_model("decoder" + every + ",full_every=2").forward_flop());
}

TEST_CASE("a Llama block's flop follow from its widths; a causal kernel computes half of the scores",
          "[models]") {
  const double s = 64, h = 256, q = 256, w = 64, f = 1'024;
  const std::string widths = "llama:layers=1,hidden=256,heads=4,kv_heads=1,sequence=64,vocabulary=100";
  const double products = 2 * s * (h * (q + 2 * w) + q * h + 3 * h * f);
  const double rest = 2 * 4 * s * h + 2 * s * f;  // two norms; SiLU and the gate
  CHECK(block(load_model(widths)).flop.forward == Flop(products + 2 * s * s * q + rest));
  CHECK(block(load_model(widths + ",flash=0")).flop.forward == Flop(products + 4 * s * s * q + rest));
}

TEST_CASE("memory of flash attention is linear in the sequence, that of stored probabilities is not",
          "[models]") {
  const auto saved = [](const std::string& more, int sequence) {
    return block(load_model("llama:layers=1,hidden=256,kv_heads=4,vocabulary=100,sequence=" +
                            std::to_string(sequence) + more))
        .saved.size.count();
  };
  CHECK(saved("", 256) == 2.0 * saved("", 128));
  CHECK(saved("", 1024) == 8.0 * saved("", 128));
  const double heads = 4;
  CHECK(saved(",flash=0", 128) == saved("", 128) + 4 * heads * (128.0 * 128 - 128));
  CHECK(saved(",flash=0", 256) - saved("", 256) == 4 * heads * (256.0 * 256 - 256));
}

TEST_CASE("experts cost what the chosen ones cost, and keep as many parameters as there are", "[models]") {
  const auto one = [](int experts, int active) {
    return load_model("moe:layers=1,hidden=64,heads=1,feed_forward=128,sequence=32,vocabulary=100,experts=" +
                      std::to_string(experts) + ",active=" + std::to_string(active));
  };
  const double s = 32, h = 64, f = 128;
  CHECK(block(one(8, 2)).flop.forward - block(one(8, 1)).flop.forward == Flop(6 * s * h * f));
  CHECK(block(one(9, 2)).flop.forward - block(one(8, 2)).flop.forward == Flop(2 * s * h));
  CHECK(one(9, 2).parameter_count() - one(8, 2).parameter_count() == 3 * 64 * 128 + 64);
  CHECK_THROWS_WITH(one(2, 3), Catch::Contains("active 3 is more than there are experts"));
}

TEST_CASE("attention's widths are checked", "[models]") {
  CHECK_THROWS_WITH(load_model("llama:heads=6,kv_heads=4,hidden=384"),
                    Catch::Contains("kv_heads 4 do not divide"));
  CHECK_THROWS_WITH(load_model("llama:heads=2,kv_heads=1,head_size=3"),
                    Catch::Contains("heads of an even size"));
}

TEST_CASE("a model that is like another one has other defaults; its specification lists what differs",
          "[models]") {
  CHECK(load_model("llama3-8b").specification == "llama3-8b");
  CHECK(load_model("llama3-8b:sequence=4096").specification == "llama3-8b");
  CHECK(load_model("llama3-8b:layers=2").specification == "llama3-8b:layers=2");
  const TemporaryFolder folder;
  const auto refusal = [&](const std::string& text) {
    return error_of([&] { return load_model(folder.write("mine.yaml", text)); });
  };
  CHECK(refusal("like: llama\nsettings: {layers: 1}\n").empty());
  CHECK_THAT(refusal("like: lama\n"),
             Catch::Contains("mine.yaml:1") && Catch::Contains("did you mean 'llama'"));
  CHECK_THAT(refusal("like: llama\nsettings: {layer: 1}\n"), Catch::Contains("'layer'"));
  CHECK_THAT(refusal("like: llama\nsettings: {layers: 1MiB}\n"), Catch::Contains("expected a whole number"));
  CHECK_THAT(refusal("like: llama3-8b\n"), Catch::Contains("is like another model itself"));
  CHECK_THAT(refusal("like: llama\nsegments: []\n"), Catch::Contains("'segments'"));
}

}  // namespace stepcast::decoder_test
