#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "models/layer.hpp"
#include "models/model.hpp"
#include "tests/models/reference_files.hpp"

namespace stepcast::transformer_test {

namespace {

std::vector<std::string> parameter_names(const Model& model) {
  std::vector<std::string> names;
  for (const Parameter& parameter : model.parameters) names.push_back(parameter.name);
  return names;
}

const Segment& segment(const Model& model, const std::string& name) {
  const auto found = std::find_if(model.segments.begin(), model.segments.end(),
                                  [&](const Segment& candidate) { return candidate.name == name; });
  REQUIRE(found != model.segments.end());
  return *found;
}

}  // namespace

TEST_CASE("BERT-base takes 22.37 GF per sample of 128 tokens, its formula and the small rest") {
  const Model model = load_model("bert-base");
  const double s = 128;
  const double h = 768;
  const double products = 12 * (24 * s * h * h + 4 * s * s * h) + 2 * h * h;
  const double layer_norms = 25 * 8 * s * h;
  const double activations = 12 * s * 4 * h + h;  // GELU and tanh
  CHECK(model.forward_flop() == Flop(products + layer_norms + activations));
  CHECK(model.forward_flop().count() == Approx(22.37e9).epsilon(0.0003));
  CHECK(segment(model, "layer0").flop.forward.count() == Approx(1.864e9).epsilon(0.0005));
}

TEST_CASE("a layer of BERT-base has 7,087,872 parameters and its pooler 590,592") {
  const Model model = load_model("bert-base");
  CHECK(model.segments.size() == 14);
  const auto count = [&](const std::string& name) {
    std::int64_t total = 0;
    for (const int parameter : segment(model, name).parameters)
      total += model.parameters[static_cast<std::size_t>(parameter)].numel();
    return total;
  };
  CHECK(count("layer0") == 7'087'872);
  CHECK(count("layer11") == 7'087'872);
  CHECK(count("pooler") == 590'592);
  CHECK(count("embeddings") == 23'440'896 + 393'216 + 1'536 + 1'536);
}

TEST_CASE("only the blocks of a repeat are repeated segments") {
  for (const char* name : {"bert-base", "gpt2-small", "transformer"}) {
    CAPTURE(name);
    const Model model = load_model(name);
    for (std::size_t i = 0; i < model.segments.size(); ++i)
      CHECK(model.segments[i].repeated == (i > 0 && i + 1 < model.segments.size()));
  }
}

TEST_CASE(
    "a token is 8 bytes of input, and a boundary between blocks is one float32 per hidden unit and token") {
  const Model model = load_model("bert-base");
  CHECK(model.input.kind == "tokens");
  CHECK(model.input.vocabulary == 30'522);
  CHECK(model.input_bytes() == Bytes(8 * 128));
  CHECK(segment(model, "layer3").output_size == Bytes(4 * 128 * 768));
  CHECK(load_model("bert-base:sequence=64").input_bytes() == Bytes(8 * 64));
}

TEST_CASE("what a block of BERT keeps for the backward follows from its tensors") {
  // In units of sequence x hidden = 8 x 64: q, k, v; the attention's output, two inputs of layer norm; what
  // goes into the feed-forward part, GELU's input and output (4 each) and the block's output. Beside:
  // probabilities, layer norm's two numbers per position, twice.
  const Model bare = load_model("bert-base:hidden=64,heads=2,layers=1,sequence=8,dropout=0");
  const double vectors = 3 + 1 + 2 + 1 + 4 + 4 + 1;
  const double probabilities = 2 * 8 * 8;
  CHECK(segment(bare, "layer0").saved.size == Bytes(4 * (vectors * 8 * 64 + probabilities + 2 * 2 * 8)));
  // Dropout keeps its noise, twice on hidden states; of the probabilities also what is left of them.
  const Model noisy = load_model("bert-base:hidden=64,heads=2,layers=1,sequence=8");
  CHECK(segment(noisy, "layer0").saved.size - segment(bare, "layer0").saved.size ==
        Bytes(4 * (2 * 8 * 64 + 2 * probabilities)));
}

TEST_CASE("a small BERT has the sizes that follow from four settings") {
  const Model model = load_model("bert-base:layers=4,hidden=256,sequence=64");
  CHECK(model.specification == "bert-base:hidden=256,layers=4,sequence=64");
  CHECK(model.settings.at("heads") == 4);
  CHECK(model.settings.at("feed_forward") == 1024);
  const std::int64_t h = 256;
  const std::int64_t block = 4 * (h * h + h) + 8 * h * h + 4 * h + h + 4 * h;
  CHECK(model.parameter_count() == (30'522 + 512 + 2 + 2) * h + 4 * block + h * h + h);
  CHECK(segment(model, "layer3").output == Shape{64, 256});
  CHECK(model.segments.back().output == Shape{256});
}

TEST_CASE("GPT-2's parameters have Hugging Face's names and registration order") {
  const std::vector<std::string> names = parameter_names(load_model("gpt2-small"));
  REQUIRE(names.size() == 2 + 12 * 12 + 2);
  const std::vector<std::string> first(names.begin(), names.begin() + 14);
  CHECK(first == std::vector<std::string>{"wte.weight", "wpe.weight", "h.0.ln_1.weight", "h.0.ln_1.bias",
                                          "h.0.attn.c_attn.weight", "h.0.attn.c_attn.bias",
                                          "h.0.attn.c_proj.weight", "h.0.attn.c_proj.bias", "h.0.ln_2.weight",
                                          "h.0.ln_2.bias", "h.0.mlp.c_fc.weight", "h.0.mlp.c_fc.bias",
                                          "h.0.mlp.c_proj.weight", "h.0.mlp.c_proj.bias"});
  CHECK(names[names.size() - 2] == "ln_f.weight");
  CHECK(names.back() == "ln_f.bias");
}

TEST_CASE("GPT-2's head uses the embedding's weight and owns none; that weight is ready last") {
  const Model model = load_model("gpt2-small");
  const Segment& head = segment(model, "head");
  CHECK(head.tied == std::vector<int>{0});
  CHECK(head.parameters.size() == 2);  // ln_f
  CHECK(head.output == Shape{128, 50'257});
  CHECK(head.layers.back().kind == "tied_linear");
  CHECK(cost_of(head.layers.back()).kernels.front().flop == Flop(2.0 * 128 * 768 * 50'257));
  CHECK(model.ready_order().back() == 0);
  CHECK(segment(model, "embeddings").tied.empty());
}

TEST_CASE("a fused projection costs the flop of three and has as many parameters") {
  const Model gpt = load_model("gpt2-small:vocabulary=1000,positions=128,dropout=0");
  const Model bert = load_model("bert-base:vocabulary=1000,dropout=0");
  CHECK(segment(gpt, "layer0").flop.forward == segment(bert, "layer0").flop.forward);
  CHECK(segment(gpt, "layer0").parameters.size() == 12);
  CHECK(segment(bert, "layer0").parameters.size() == 16);
}

TEST_CASE("the decoder of any size has a head of its own") {
  const Model model = load_model("transformer:layers=2,hidden=128,vocabulary=1000,sequence=32");
  CHECK(model.segments.size() == 4);
  CHECK(model.segments.back().tied.empty());
  CHECK(model.segments.back().output == Shape{32, 1000});
  CHECK(parameter_names(model).back() == "head.weight");
  CHECK(model.settings.at("heads") == 2);
}

}  // namespace stepcast::transformer_test
