#include "models/given_layer.hpp"

#include <algorithm>
#include <cmath>
#include <set>

#include "core/number.hpp"
#include "core/ranges.hpp"
#include "core/table.hpp"
#include "models/layer_kinds.hpp"

namespace stepcast {
namespace {

constexpr std::array<std::pair<const char*, double Gemm::*>, 4> kGemmNumbers{
    {{"rows", &Gemm::rows}, {"columns", &Gemm::columns}, {"depth", &Gemm::depth}, {"heads", &Gemm::heads}}};
constexpr std::array<std::pair<const char*, double FusedAttention::*>, 6> kAttentionNumbers{
    {{"heads", &FusedAttention::heads},
     {"kv_heads", &FusedAttention::kv_heads},
     {"rows", &FusedAttention::rows},
     {"keys", &FusedAttention::keys},
     {"head_size", &FusedAttention::head_size},
     {"value_size", &FusedAttention::value_size}}};

constexpr std::string_view kInteger = "int64";

double amount(const YamlNode& node, const char* key) {
  if (!node.has(key)) return 0.0;
  const double value = node.at(key).number();
  if (value < 0.0) node.at(key).fail("must be from 0 to 1e18, found {}", value);
  return value;
}

template <class Numbers, class Target>
bool read_numbers(const YamlNode& node, const char* key, const Numbers& numbers, Target& target) {
  if (!node.has(key)) return false;
  std::vector<std::string> known;
  for (const auto& [name, member] : numbers) {
    known.emplace_back(name);
    target.*member = amount(node.at(key), name);
  }
  known.emplace_back("causal");
  node.at(key).allow_only(known);
  return true;
}

GivenOperator read_operator(const YamlNode& node) {
  node.allow_only({"op", "flop", "forward", "backward", "kept", "weights", "gemm", "attention"});
  GivenOperator one{node.at("op").text(), {}, {}};
  one.kernel.flop = Flop(amount(node, "flop"));
  one.kernel.forward = Bytes(amount(node, "forward"));
  one.kernel.backward = Bytes(amount(node, "backward"));
  one.kernel.kept.size = Bytes(amount(node, "kept"));
  one.weights = Bytes(amount(node, "weights"));
  if (names_norm(one.name)) one.kernel.role = KernelRole::kNorm;
  if (Gemm gemm; read_numbers(node, "gemm", kGemmNumbers, gemm)) one.kernel.computes = gemm;
  if (FusedAttention attention; read_numbers(node, "attention", kAttentionNumbers, attention)) {
    attention.causal = node.at("attention").flag("causal");
    one.kernel.computes = attention;
  }
  return one;
}

/// `{fc.weight: 10x64}`; a scalar is `scalar`, integers are `int64` or `int64 3x3`.
std::vector<LayerTensor> read_tensors(const YamlNode& node, const char* key) {
  std::vector<LayerTensor> tensors;
  for (const auto& [name, value] : entries_of(node, key)) {
    std::string text = value.text();
    LayerTensor tensor{.suffix = name, .is_integer = text.starts_with(kInteger)};
    if (name.empty()) value.fail("a name cannot be empty");
    if (tensor.is_integer) text.erase(0, std::min(text.size(), kInteger.size() + 1));
    if (!text.empty() && text != "scalar")
      tensor.shape = value.placed([&, name = name] { return parse_shape(text, name); });
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

std::string tensor_text(const LayerTensor& tensor) {
  const std::string shape = tensor.shape.empty() ? "scalar" : shape_text(tensor.shape);
  return tensor.is_integer ? fmt::format("{} {}", kInteger, shape) : shape;
}

std::string tensors_text(const char* key, const std::vector<LayerTensor>& tensors) {
  std::string text;
  for (const LayerTensor& tensor : tensors)
    text += fmt::format("            {}: {}\n", in_double_quotes(tensor.suffix), tensor_text(tensor));
  return text.empty() ? "" : fmt::format("          {}:\n{}", key, text);
}

std::string names_text(const char* key, const std::vector<std::string>& names) {
  return names.empty()
             ? ""
             : fmt::format("          {}: [{}]\n", key, joined(transformed(names, in_double_quotes)));
}

template <class Numbers, class Source>
std::string numbers_text(const char* key, const Numbers& numbers, const Source& source,
                         const std::string& more) {
  std::vector<std::string> words;
  for (const auto& [name, member] : numbers)
    if (source.*member != 0.0) words.push_back(fmt::format("{}: {}", name, source.*member));
  return fmt::format(", {}: {{{}{}}}", key, joined(words), more);
}

std::string operator_text(const GivenOperator& one) {
  std::string text = "            - {op: " + in_double_quotes(one.name);
  for (const auto& [key, value] : {std::pair{"flop", one.kernel.flop.count()},
                                   {"forward", one.kernel.forward.count()},
                                   {"backward", one.kernel.backward.count()},
                                   {"kept", one.kernel.kept.size.count()},
                                   {"weights", one.weights.count()}})
    if (value > 0.0) text += fmt::format(", {}: {}", key, value);
  if (const Gemm* gemm = one.kernel.gemm()) text += numbers_text("gemm", kGemmNumbers, *gemm, "");
  if (const FusedAttention* attention = one.kernel.attention())
    text +=
        numbers_text("attention", kAttentionNumbers, *attention, attention->causal ? ", causal: true" : "");
  return text + "}\n";
}

}  // namespace

Shape parse_shape(const std::string& text, const std::string& what) {
  constexpr std::int64_t kMost = 1'000'000'000;
  constexpr double kMostElements = 1e12;
  Shape shape;
  double elements = 1.0;
  for (std::size_t start = 0, end = 0; end != std::string::npos; start = end + 1) {
    end = text.find('x', start);
    const auto extent =
        number_in<std::int64_t>(std::string_view(text).substr(start, end - start)).value_or(0);
    if (extent < 1 || extent > kMost)
      throw InputError("{}: '{}' is no shape; expected numbers from 1 with 'x' between them: 3x224x224", what,
                       text);
    shape.push_back(extent);
    elements *= static_cast<double>(extent);
  }
  if (elements > kMostElements) throw InputError("{}: {} has more than 1e12 elements", what, text);
  return shape;
}

GivenLayer read_given(const YamlNode& node, const std::string& program) {
  node.allow_only({"nodes", "output", "parameters", "buffers", "ready", "tied", "list"});
  GivenLayer layer{.program = program};
  const auto number = [](const YamlNode& one) {
    const long long value = one.integer();
    if (value < 0 || value > std::numeric_limits<int>::max()) one.fail("must be a whole number from 0");
    return static_cast<int>(value);
  };
  if (node.has("nodes")) {
    const std::vector<YamlNode> nodes = node.at("nodes").items();
    if (nodes.size() != 3) node.at("nodes").fail("must be [first, end, all]");
    layer.first = number(nodes[0]);
    layer.end = number(nodes[1]);
    layer.nodes = number(nodes[2]);
  }
  for (const YamlNode& extent : node.at("output").items())
    layer.output.push_back(extent.placed([&] { return parse_shape(extent.text(), "output").front(); }));
  layer.parameters = read_tensors(node, "parameters");
  layer.buffers = read_tensors(node, "buffers");
  layer.ready = transformed(node.items("ready"), &YamlNode::text);
  layer.tied = transformed(node.items("tied"), &YamlNode::text);
  const std::vector<std::string> own = transformed(layer.parameters, &LayerTensor::suffix);
  if (std::multiset(own.begin(), own.end()) != std::multiset(layer.ready.begin(), layer.ready.end()))
    node.fail("'ready' must list each of 'parameters' once");
  for (const YamlNode& one : node.items("list")) layer.operators.push_back(read_operator(one));
  return layer;
}

std::string to_text(const GivenModel& model) {
  std::string text = fmt::format("description: {}\n", in_double_quotes(model.description));
  if (!model.program.empty()) text += fmt::format("program: {}\n", in_double_quotes(model.program));
  text += fmt::format("input: {}\nloss: {}\noptimizer: {}\nsegments:\n", model.input, model.loss,
                      model.optimizer);
  for (const auto& [name, layer] : model.parts) {
    text += fmt::format("  - name: {}\n    layers:\n      - operators:\n", in_double_quotes(name));
    if (layer.nodes > 0)
      text += fmt::format("          nodes: [{}, {}, {}]\n", layer.first, layer.end, layer.nodes);
    text += fmt::format("          output: [{}]\n", joined(layer.output));
    text += tensors_text("parameters", layer.parameters) + tensors_text("buffers", layer.buffers) +
            names_text("ready", layer.ready) + names_text("tied", layer.tied);
    std::string list;
    for (const GivenOperator& one : layer.operators) list += operator_text(one);
    if (!list.empty()) text += "          list:\n" + list;
  }
  return text;
}

std::vector<LayerKind> given_kinds() {
  return {{"operators", [](const Layer& l) { return l.given->output; },
           [](const Layer& l) { return l.given->parameters; },
           [](const Layer& l, LayerCost& cost) {
             cost.kernels = transformed(l.given->operators, &GivenOperator::kernel);
           },
           [](const Layer& l) { return l.given->buffers; }}};
}

}  // namespace stepcast
