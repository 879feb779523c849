#include "models/model.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/file.hpp"
#include "core/yaml.hpp"
#include "models/layer.hpp"
#include "tests/models/reference_files.hpp"

namespace stepcast::model_test {

TEST_CASE("parameters have PyTorch's names, shapes and registration order") {
  const auto name = GENERATE(from_range(reference_models()));
  CAPTURE(name);
  const Model model = load_model(name);
  const auto rows = reference_rows(name + ".parameters.csv");
  REQUIRE(model.parameters.size() == rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    CHECK(model.parameters[i].name == rows[i][0]);
    CHECK(shape_text(model.parameters[i].shape) == rows[i][1]);
    CHECK(model.parameters[i].size == Bytes(4.0 * static_cast<double>(model.parameters[i].numel())));
  }
}

TEST_CASE("gradients become ready in the order in which PyTorch's autograd accumulates them") {
  const auto name = GENERATE(from_range(reference_models()));
  CAPTURE(name);
  const Model model = load_model(name);
  const auto rows = reference_rows(name + ".parameters.csv");
  const std::vector<int> order = model.ready_order();
  REQUIRE(order.size() == rows.size());
  for (std::size_t position = 0; position < rows.size(); ++position) {
    const auto parameter = static_cast<std::size_t>(order[position]);
    CAPTURE(model.parameters[parameter].name);
    CHECK(std::to_string(position) == rows[parameter][2]);
  }
}

namespace {

/// A PyTorch module with forward flop per sample.
struct ModuleRow {
  std::string name, type;
  Shape output;
  std::int64_t parameters = 0;
  Flop forward;
};

std::int64_t count(const std::vector<LayerTensor>& tensors) {
  std::int64_t sum = 0;
  for (const LayerTensor& tensor : tensors) sum += numel(tensor.shape);
  return sum;
}

/// Modules of a layer and of its branches, in the order in which they run.
void add_modules(const Layer& layer, std::vector<ModuleRow>& rows) {
  static const std::map<std::string, std::string> kTypes{
      {"conv", "Conv2d"},        {"batch_norm", "BatchNorm2d"}, {"relu", "ReLU"},
      {"max_pool", "MaxPool2d"}, {"linear", "Linear"},          {"adaptive_avg_pool", "AdaptiveAvgPool2d"},
      {"dropout", "Dropout"},    {"layer_norm", "LayerNorm"},   {"gelu", "GELU"},
      {"tanh", "Tanh"},          {"self_attention", "Linear"},  {"embedding", "Embedding"}};
  for (const std::vector<Layer>* branch : {&layer.body, &layer.shortcut})
    for (const Layer& inner : *branch) add_modules(inner, rows);
  const auto type = kTypes.find(layer.kind);
  if (type == kTypes.end()) return;
  const std::vector<LayerTensor> tensors = layer_kind(layer.kind).parameters(layer);
  const bool embedding = layer.kind == "embedding";
  if (!embedding && layer.kind != "self_attention") {
    if (!layer.name.empty())
      rows.push_back(
          {layer.name, type->second, layer.output, count(tensors), cost_of(layer).kernels.front().flop});
    return;
  }
  std::map<std::string, std::vector<LayerTensor>> modules;
  std::vector<std::string> names;
  for (const LayerTensor& tensor : tensors) {
    const std::string name = tensor.suffix.substr(0, tensor.suffix.rfind('.'));
    if (modules[name].empty()) names.push_back(name);
    modules[name].push_back(tensor);
  }
  if (embedding && names.size() > 2) std::swap(names[1], names[2]);  // types are looked up before positions
  for (const std::string& name : names) {
    const std::vector<LayerTensor>& own = modules[name];
    const auto flop = 2.0 * static_cast<double>(layer.input.front() * numel(own.front().shape));
    rows.push_back({full_name(layer, name), type->second,
                    embedding ? layer.output : Shape{layer.input.front(), own.front().shape.front()},
                    count(own), Flop(embedding ? 0.0 : flop)});
  }
}

}  // namespace

TEST_CASE("layers have PyTorch's names, classes, output shapes, parameter counts and flop") {
  const auto name = GENERATE(from_range(reference_models()));
  CAPTURE(name);
  std::vector<ModuleRow> found;
  for (const Segment& segment : load_model(name).segments)
    for (const Layer& layer : segment.layers) add_modules(layer, found);
  std::size_t next = 0;
  for (const auto& row : reference_rows(name + ".layers.csv")) {
    if (row[1] == "Identity") continue;  // ResNet's max pooling, which the CIFAR variant replaces by nothing
    REQUIRE(next < found.size());
    CAPTURE(row[0]);
    CHECK(found[next].name == row[0]);
    CHECK(found[next].type == row[1]);
    CHECK(shape_text(found[next].output) == row[2]);
    CHECK(std::to_string(found[next].parameters) == row[3]);
    CHECK(found[next].forward == Flop(std::stod(row[4])));
    ++next;
  }
  CHECK(next == found.size());
}

TEST_CASE("totals of the shipped models are those of PyTorch's modules") {
  struct Total {
    const char* name;
    std::int64_t parameters;
    double buffer_bytes;
  };
  const auto total = GENERATE(Total{"simple-cnn", 315'722, 0}, Total{"vgg11-bn-cifar", 9'231'114, 22'080},
                              Total{"resnet18-cifar", 11'173'962, 38'560},
                              Total{"resnet50", 25'557'032, 212'904}, Total{"netflix-mlp", 4'097, 0},
                              Total{"bert-base", 109'482'240, 0}, Total{"gpt2-small", 124'439'808, 0});
  CAPTURE(total.name);
  const Model model = load_model(total.name);
  CHECK(model.parameter_count() == total.parameters);
  CHECK(model.parameter_bytes() == Bytes(4.0 * static_cast<double>(total.parameters)));
  CHECK(model.buffer_bytes(0) + model.buffer_bytes(1) == Bytes(total.buffer_bytes));
}

TEST_CASE("a batch norm has two float32 buffers per channel and one int64 counter") {
  const Model model = load_model("vgg11-bn-cifar");
  REQUIRE(model.buffers.size() == 24);
  CHECK(model.buffers[0].name == "layers.1.running_mean");
  CHECK(model.buffers[1].name == "layers.1.running_var");
  CHECK(model.buffers[2].name == "layers.1.num_batches_tracked");
  CHECK(model.buffers[2].is_integer);
  CHECK(model.buffer_bytes(1) == Bytes(8 * 8));
}

TEST_CASE("segments are the blocks of the model") {
  const Model vgg = load_model("vgg11-bn-cifar");
  REQUIRE(vgg.segments.size() == 9);
  CHECK(vgg.segments[8].name == "classifier");
  const Model resnet = load_model("resnet18-cifar");
  REQUIRE(resnet.segments.size() == 10);
  CHECK(resnet.segments[1].name == "layer1.0");
  CHECK(load_model("simple-cnn").segments.size() == 4);
  CHECK(load_model("netflix-mlp").segments.size() == 2);
}

TEST_CASE("every shipped model has the properties of a model") {
  const auto name = GENERATE(from_range(resource_names("models", ".yaml")));
  CAPTURE(name);
  const Model model = load_model(name);
  CHECK(model.name == name);
  CHECK(model.specification == name);
  CHECK_FALSE(YamlNode::load(model.path).at("description").text().empty());

  std::set<std::string> names;
  for (const Parameter& parameter : model.parameters) CHECK(names.insert(parameter.name).second);
  const std::vector<int> order = model.ready_order();
  const std::set<int> ready(order.begin(), order.end());
  CHECK(ready.size() == model.parameters.size());

  Shape flowing = model.input.shape;
  for (std::size_t i = 0; i < model.segments.size(); ++i) {
    const Segment& segment = model.segments[i];
    CHECK(segment.layers.front().input == flowing);
    flowing = segment.output;
    for (const int parameter : segment.parameters)
      CHECK(model.parameters[static_cast<std::size_t>(parameter)].segment == static_cast<int>(i));
    CHECK(segment.flop.backward >= segment.flop.forward);
    CHECK(segment.flop.backward <= 2.0 * segment.flop.forward);
    CHECK(segment.saved.size >= segment.output_size * (model.has_fixed_times() ? 0.0 : 1.0));
  }
}

TEST_CASE("the backward costs twice the forward, once where the input needs no gradient") {
  const Model model = load_model("netflix-mlp");
  // fc1: 2 x 30 x 128 multiply-adds' flop and 128 for ReLU; no gradient of the features.
  CHECK(model.segments[0].flop.forward == Flop(7680 + 128));
  CHECK(model.segments[0].flop.backward == Flop(7680 + 2 * 128));
  CHECK(model.segments[1].flop.forward == Flop(256));
  CHECK(model.segments[1].flop.backward == Flop(512));
}

TEST_CASE("saved bytes count each activation once, in the segment that allocates it") {
  const Model mlp = load_model("netflix-mlp");
  // fc1 keeps ReLU's output, which is also the segment's output; its input is not its own.
  CHECK(mlp.segments[0].saved.size == Bytes(4 * 128));
  CHECK(mlp.segments[1].saved.size == Bytes(4));
  const Model vgg = load_model("vgg11-bn-cifar");
  // Kept: the convolution's output, ReLU's output, the pooled output and its int64 indices. Not batch norm's
  // output.
  CHECK(vgg.segments[0].saved.size == Bytes(4 * (65536 + 65536 + 16384) + 8 * 16384));
  CHECK(vgg.segments[8].saved.size == Bytes(4 * 10));
}

TEST_CASE("an override changes the shapes and is in the specification only if it differs") {
  const Model wide = load_model("netflix-mlp:hidden=256");
  CHECK(wide.parameter_count() == 30 * 256 + 256 + 256 + 1);
  CHECK(wide.specification == "netflix-mlp:hidden=256");
  CHECK(wide.settings.at("hidden") == 256);
  CHECK(load_model("netflix-mlp:hidden=128").specification == "netflix-mlp");
  CHECK(load_model("netflix-mlp:hidden=64,features=20").specification == "netflix-mlp:features=20,hidden=64");
}

TEST_CASE("a canonical specification loads the same model") {
  const auto given =
      GENERATE(as<std::string>{}, "netflix-mlp:hidden=256", "synthetic:backward=2500us,layers=3",
               "synthetic:parameter=1024B", "simple-cnn:classes=100");
  const Model model = load_model(given);
  const Model again = load_model(model.specification);
  CHECK(again.specification == model.specification);
  CHECK(again.settings == model.settings);
  CHECK(load_model("synthetic:parameter=1024B").specification == "synthetic:parameter=1KiB");
}

TEST_CASE("the synthetic model is 50 segments of 0 s and 2 ms with one tensor of 25 MiB each") {
  const Model model = load_model("synthetic");
  REQUIRE(model.segments.size() == 50);
  CHECK(model.has_fixed_times());
  CHECK(model.parameter_bytes() == Bytes(50 * 25 * kMebi));
  CHECK(model.segments[49].name == "layer49");
  CHECK(model.segments[49].fixed->forward == Seconds(0));
  CHECK(model.segments[49].fixed->backward.count() == Approx(2e-3));
  CHECK(model.parameters[49].name == "layer49.weight");
  CHECK(load_model("synthetic:layers=3,backward=5ms").segments.back().fixed->backward.count() ==
        Approx(5e-3));
  CHECK_FALSE(load_model("netflix-mlp").has_fixed_times());
}

TEST_CASE("every layer kind is documented by name once") {
  std::set<std::string> names;
  for (const LayerKind& kind : layer_kinds()) CHECK(names.insert(kind.name).second);
  CHECK(names.contains("residual"));
}

TEST_CASE("kinds of layers without functions of their own are functions of each element") {
  std::vector<std::string> without;  // batch norm has parameters and buffers alone
  for (const LayerKind& kind : layer_kinds())
    if (!kind.output && !kind.adjust && kind.gemm == nullptr) without.push_back(kind.name);
  CHECK(without == std::vector<std::string>{"batch_norm", "relu", "silu", "relu2", "tanh"});
}

TEST_CASE("attributes of layers have a unit, a default and a least value that fit each other") {
  for (const LayerKind& kind : layer_kinds()) {
    std::set<std::string> before;
    for (const Attribute& attribute : kind.attributes) {
      CAPTURE(kind.name, attribute.key);
      CHECK((attribute.same_as.empty() || before.contains(attribute.same_as)));
      CHECK((attribute.default_name.empty() || attribute.unit == Unit::kName));
      CHECK(attribute.default_value.value_or(attribute.least) >= attribute.least);
      if (attribute.unit == Unit::kFlag) CHECK(attribute.default_value.value_or(2) < 2);
      CHECK(before.insert(attribute.key).second);
    }
  }
  struct Row {
    const char *kind, *key;
    Unit unit;
    std::optional<std::int64_t> value;
    std::int64_t least;
    std::string same_as, name;
  };
  for (const Row& row : {Row{"conv", "out", Unit::kCount, {}, 1, "", ""},
                         {"conv", "padding", Unit::kCount, 0, 0, "", ""},
                         {"max_pool", "stride", Unit::kCount, {}, 1, "kernel", ""},
                         {"max_pool", "padding", Unit::kCount, 0, 0, "", ""},
                         {"fixed", "forward", Unit::kNanoseconds, {}, 0, "", ""},
                         {"fixed", "parameter", Unit::kBytes, {}, 4, "", ""},
                         {"embedding", "word", Unit::kName, {}, 0, "", "word_embeddings"},
                         {"tied_linear", "to", Unit::kName, {}, 0, "", ""},
                         {"layer_norm", "bias", Unit::kFlag, 1, 0, "", ""},
                         {"experts", "imbalance", Unit::kCount, 100, 100, "", ""}}) {
    CAPTURE(row.kind, row.key);
    const auto& attributes = layer_kind(row.kind).attributes;
    const auto found = std::ranges::find(attributes, row.key, &Attribute::key);
    REQUIRE(found != attributes.end());
    CHECK(found->unit == row.unit);
    CHECK(found->default_value == row.value);
    CHECK(found->least == row.least);
    CHECK(found->same_as == row.same_as);
    CHECK(found->default_name == row.name);
  }
}

}  // namespace stepcast::model_test
