#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "core/error.hpp"
#include "models/model.hpp"
#include "tests/worlds.hpp"

namespace stepcast::model_file_test {
using namespace worlds;
using Catch::Contains;

namespace {

/// A model file that goes away with the test.
class ModelFile {
 public:
  explicit ModelFile(const std::string& text) {
    std::string pattern = (std::filesystem::temp_directory_path() / "stepcast-model-XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
    std::ofstream(path()) << text;
  }
  ~ModelFile() { std::filesystem::remove_all(folder_); }
  ModelFile(const ModelFile&) = delete;
  ModelFile& operator=(const ModelFile&) = delete;
  [[nodiscard]] std::string path() const { return (folder_ / "mine.yaml").string(); }

 private:
  std::filesystem::path folder_;
};

/// A correct file of one segment with these layers, four lines of three spaces after `segments:`.
std::string with_layers(const std::string& layers) {
  return "settings: {width: 8, size: 4KiB}\n"
         "input: {kind: image, shape: [3, 8, 8]}\n"
         "loss: cross_entropy\n"
         "classes: 10\n"
         "optimizer: {kind: sgd, learning_rate: 0.1}\n"
         "segments:\n"
         "  - name: only\n"
         "    layers:\n" +
         layers;
}

const std::string kHead = "      - flatten\n      - linear: {name: fc, out: 10}\n";

/// The message with which the file is refused; "" when it is accepted.
std::string refusal(const std::string& text, const std::string& overrides = "") {
  const ModelFile file(text);
  return error_of([&] { return load_model(file.path() + overrides); });
}

}  // namespace

TEST_CASE("a model file of one's own is loaded by its path") {
  const ModelFile file(with_layers("      - conv: {name: c, out: width, kernel: 3, padding: 1}\n" + kHead));
  const Model model = load_model(file.path() + ":width=2");
  CHECK(model.name == "mine");
  CHECK(model.specification == file.path() + ":width=2");
  CHECK(model.parameter_count() == (2 * 27 + 2) + (2 * 64 * 10 + 10));
}

TEST_CASE("an unknown model is refused with the nearest and all known ones") {
  CHECK_THROWS_WITH(load_model("vgg11-bn-cifr"), Contains("unknown model 'vgg11-bn-cifr'") &&
                                                     Contains("did you mean 'vgg11-bn-cifar'") &&
                                                     Contains("netflix-mlp"));
  CHECK_THROWS_AS(load_model("/nowhere/mine.yaml"), InputError);
}

TEST_CASE("an override that is wrong is refused with what is right") {
  CHECK_THROWS_WITH(load_model("netflix-mlp:hiden=3"),
                    Contains("did you mean 'hidden'") && Contains("features"));
  CHECK_THROWS_WITH(load_model("netflix-mlp:hidden=many"), Contains("hidden") && Contains("many"));
  CHECK_THROWS_WITH(load_model("netflix-mlp:hidden="), Contains("key=value"));
  CHECK_THROWS_WITH(load_model("netflix-mlp:hidden=3,"), Contains("key=value"));
  CHECK_THROWS_WITH(load_model("netflix-mlp:hidden=3,hidden=4"), Contains("is set twice"));
  CHECK_THROWS_WITH(load_model("netflix-mlp:hidden=0"), Contains("at least 1") && Contains("found 0"));
  CHECK_THROWS_WITH(load_model("netflix-mlp:hidden=-5"), Contains("at least 1"));
  CHECK_THROWS_WITH(load_model("netflix-mlp:hidden=2ms"), Contains("expected a whole number"));
  CHECK_THROWS_WITH(load_model("synthetic:backward=2"), Contains("expected a time") && Contains("2ms"));
  CHECK_THROWS_WITH(load_model("synthetic:parameter=26214400"), Contains("expected a size"));
  CHECK_THROWS_WITH(load_model("synthetic:parameter=6B"), Contains("multiple of 4 B"));
}

TEST_CASE("an unknown key is refused with file, line and the nearest known key") {
  const std::string message = refusal(with_layers("      - conv: {name: c, out: 8, kernal: 3}\n" + kHead));
  CHECK_THAT(message, Contains("mine.yaml:9") && Contains("'kernal'") && Contains("did you mean 'kernel'"));
  CHECK_THAT(refusal("optimiser: none\n" + with_layers(kHead)),
             Contains("mine.yaml:1") && Contains("did you mean 'optimizer'"));
}

TEST_CASE("an unknown layer kind is refused with the nearest known kind") {
  CHECK_THAT(
      refusal(with_layers("      - convolution: {name: c}\n" + kHead)),
      Contains("mine.yaml:9") && Contains("unknown layer kind 'convolution'") && Contains("batch_norm"));
  CHECK_THAT(refusal(with_layers("      - relo\n" + kHead)), Contains("did you mean 'relu'"));
}

TEST_CASE("a value that is wrong is refused with its place") {
  CHECK_THAT(refusal(with_layers("      - conv: {name: c, out: 8}\n" + kHead)), Contains("key 'kernel'"));
  CHECK_THAT(refusal(with_layers("      - conv: {name: c, out: widht, kernel: 3}\n" + kHead)),
             Contains("mine.yaml:9") && Contains("did you mean 'width'"));
  CHECK_THAT(refusal(with_layers("      - conv: {name: c, out: size, kernel: 3}\n" + kHead)),
             Contains("expected a whole number") && Contains("setting 'size'"));
  CHECK_THAT(refusal(with_layers("      - conv: {name: c, out: 8, kernel: 9}\n" + kHead)),
             Contains("kernel 9 is larger than the input 3x8x8"));
  CHECK_THAT(refusal(with_layers("      - conv: {out: 8, kernel: 3}\n" + kHead)),
             Contains("key 'name' is missing"));
  CHECK_THAT(refusal(with_layers("      - linear: {name: fc, out: 10}\n")),
             Contains("put a flatten before it"));
  CHECK_THAT(refusal(with_layers("      - flatten\n      - linear: {name: fc, out: 9}\n")),
             Contains("cross_entropy over 10 classes"));
}

TEST_CASE("a model on tokens that does not fit together is refused with its place") {
  const auto model = [](const std::string& input, const std::string& embedding, const std::string& head) {
    return "input: " + input +
           "\nloss: cross_entropy\nclasses: 50\noptimizer: {kind: adam, learning_rate: 0.1}\n" +
           "segments:\n  - name: first\n    layers:\n" + embedding + "  - name: last\n    layers:\n" + head;
  };
  const std::string tokens = "{kind: tokens, shape: [8], vocabulary: 50}";
  const std::string table =
      "      - embedding: {word: w, position: p, vocabulary: 50, positions: 8, out: 4}\n";
  const std::string head = "      - tied_linear: {to: w.weight}\n";
  CHECK(refusal(model(tokens, table, head)).empty());
  CHECK_THAT(refusal(model("{kind: tokens, shape: [8]}", table, head)), Contains("'vocabulary' is missing"));
  CHECK_THAT(refusal(model("{kind: tokens, shape: [9], vocabulary: 50}", table, head)),
             Contains("mine.yaml:8") && Contains("sequence 9 is longer than positions 8"));
  CHECK_THAT(refusal(model("{kind: tokens, shape: [8], vocabulary: 51}", table, head)),
             Contains("mine.yaml:8") && Contains("vocabulary of 51, found 50"));
  CHECK_THAT(refusal(model("{kind: features, shape: [8]}", table, head)), Contains("whose input is tokens"));
  CHECK_THAT(refusal(model(tokens, "      - gelu\n", "      - linear: {name: l, out: 50}\n")),
             Contains("the first layer") && Contains("must be an embedding"));
  CHECK_THAT(refusal(model(tokens, table, "      - tied_linear: {to: v.weight}\n")),
             Contains("mine.yaml:11") && Contains("'v.weight'") && Contains("did you mean 'w.weight'"));
  CHECK_THAT(refusal(model(tokens, table, "      - linear: {name: l, out: 3}\n" + head)),
             Contains("'w.weight' has 4 columns, the input is 8x3"));
  CHECK_THAT(refusal(model(tokens, table, "      - first_token\n      - first_token\n")),
             Contains("first_token needs sequence x features, its input is 4"));
  CHECK_THAT(refusal(model(tokens, table, "      - self_attention: {name: a, heads: 3}\n")),
             Contains("mine.yaml:11") && Contains("heads 3 do not divide the width 4"));
}

TEST_CASE("branches that do not fit are refused") {
  const std::string layers =
      "      - residual:\n          body:\n            - conv: {name: c, out: 8, kernel: 3}\n";
  CHECK_THAT(refusal(with_layers(layers + kHead)), Contains("8x6x6") && Contains("3x8x8"));
}

TEST_CASE("two layers cannot share parameter names, nor two segments theirs") {
  CHECK_THAT(refusal(with_layers("      - batch_norm: {name: b}\n      - batch_norm: {name: b}\n" + kHead)),
             Contains("two parameters have the name 'b.weight'"));
  CHECK_THAT(refusal(with_layers(kHead) + "  - name: only\n    layers: [relu]\n"),
             Contains("two segments have the name 'only'"));
}

TEST_CASE("declared times and computed layers do not mix") {
  CHECK_THAT(
      refusal(with_layers("      - fixed: {name: f, forward: 1ms, backward: 1ms, parameter: 4B}\n" + kHead)),
      Contains("kind fixed"));
  CHECK_THAT(
      refusal("input: none\nloss: none\noptimizer: none\nsegments:\n  - name: a\n    layers: [relu]\n"),
      Contains("kind fixed"));
}

TEST_CASE("a time without its unit is refused in the file") {
  const std::string file =
      "input: none\nloss: none\noptimizer: none\nsegments:\n  - name: a\n    layers:\n"
      "      - fixed: {name: f, forward: 0, backward: 2, parameter: 4B}\n";
  CHECK_THAT(refusal(file), Contains("mine.yaml:7") && Contains("backward"));
}

TEST_CASE("broken YAML is refused with line and column") {
  CHECK_THAT(refusal("input: {kind: image\nloss: none\n"),
             Contains("mine.yaml:") && Contains("not valid YAML"));
}

}  // namespace stepcast::model_file_test
