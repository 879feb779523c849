#include "models/layer.hpp"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <stdexcept>

#include "core/enum_table.hpp"
#include "core/error.hpp"
#include "core/number.hpp"
#include "core/ranges.hpp"
#include "core/yaml.hpp"
#include "models/layer_kinds.hpp"

namespace stepcast {

std::string to_text(Unit unit) {
  constexpr auto kUnits = enum_names<Unit>("a whole number", "true or false", "a size such as 25MiB",
                                           "a time such as 2ms", "a name");
  return row_of(kUnits, unit).name;
}

ElementCost read_element_cost(const YamlNode& node) {
  constexpr auto kKept = enum_names<Kept>("nothing", "input", "output");
  const auto numbers = [&](const char* key) {
    const std::vector<double> found = transformed(node.items(key), &YamlNode::number);
    if (!found.empty() && found.size() != 2)
      node.at(key).fail("expected two numbers, found {}", found.size());
    return found.empty() ? PerElement{} : PerElement{found[0], found[1]};
  };
  return {.flop = node.has("flop") ? node.at("flop").number() : 0.0,
          .forward = numbers("forward"),
          .backward = numbers("backward"),
          .kept = value_of(kKept, "kept", node.text_or("kept", "nothing"))};
}

namespace {

Attribute attribute_of(const std::string& text) {
  constexpr auto kUnits = enum_names<Unit>("count", "flag", "bytes", "ns", "name");
  std::vector<std::string> words = words_in(text);
  words.resize(4, "-");
  Attribute one{words[0], value_of(kUnits, "unit", words[1]), number_in<std::int64_t>(words[2]),
                number_in<std::int64_t>(words[3]).value_or(0)};
  if (!one.default_value && words[2] != "-")
    (one.unit == Unit::kName ? one.default_name : one.same_as) = words[2];
  return one;
}

void read_kind(const YamlNode& node, LayerKind& kind) {
  constexpr auto kOrders = enum_names<ReadyOrder>("registered", "reversed", "given", "first_last");
  node.allow_only({"kind", "attributes", "input", "branches", "flop", "forward", "backward", "kept", "view",
                   "ready", "needs_no_name", "shared"});
  kind.name = node.at("kind").text();
  kind.attributes = transformed(split(node.text_or("attributes", ""), ','), attribute_of);
  if (const std::vector<YamlNode> form = node.items("input"); !form.empty())
    kind.input = {form[0].integer(), form[1].integer(), form.at(2).text(),
                  form.size() > 3 ? form[3].text() : ""};
  kind.branches = transformed(node.items("branches"), &YamlNode::text);
  kind.each = read_element_cost(node);
  kind.is_view = node.flag("view");
  kind.ready_order = value_of(kOrders, "ready", node.text_or("ready", "registered"));
  kind.needs_no_name = node.flag("needs_no_name");
  for (const auto& [by, attributes] : entries_of(node, "shared")) {
    kind.shared_by = by;
    for (const auto& [key, words] : entries_of(attributes)) kind.divided.emplace_back(key, words.text());
  }
}

/// Adds an adapter beside each GEMM with a weight: x A^T, z B^T, and two passes over y, scaled and added. The
/// backward scales dy, and adds the gradients of x. It keeps x and z. PyTorch computes them one by one, in
/// the dtype of activations.
void add_adapters(double rank, LayerCost& cost) {
  const std::vector<Kernel> kernels = cost.kernels;
  for (const Kernel& kernel : kernels) {
    const Gemm* base = kernel.gemm();
    if (base == nullptr || !base->has_weight()) continue;
    const double inputs = base->rows * base->depth, outputs = base->rows * base->columns;
    for (const Gemm& gemm :
         {Gemm{.rows = base->rows, .columns = rank, .depth = base->depth, .adapts = true},
          Gemm{.rows = base->rows, .columns = base->columns, .depth = rank, .adapts = true}})
      cost.kernels.push_back(multiplies(gemm));
    keep(base->rows * rank, cost.kernels.back());
    cost.kernels.push_back(moves(5.0 * outputs, 2.0 * outputs + 3.0 * inputs, 2, 2));
  }
  cost.saves_input = true;
}

/// A GEMM with a frozen weight has no gradient but that of its input, for which no input is saved.
void freeze(LayerCost& cost) {
  for (std::vector<Kernel>* list : {&cost.kernels, &cost.steps, &cost.separate})
    for (Kernel& kernel : *list) {
      Gemm* gemm = kernel.gemm();
      if (gemm == nullptr || !gemm->has_weight()) continue;
      gemm->frozen = true;
      kernel.backward = 0.5 * kernel.backward;
      if (kernel.backward_launches < 0) kernel.backward_launches = kernel.launches;
      cost.saves_input = false;
    }
}

}  // namespace

const std::vector<LayerKind>& layer_kinds() {
  static const std::vector<LayerKind> kKinds = [] {
    std::map<std::string, LayerKind> coded;
    for (auto part : {general_kinds, transformer_kinds, attention_kinds, expert_kinds, state_space_kinds,
                      parallel_kinds, given_kinds})
      for (LayerKind& kind : part()) coded[kind.name] = std::move(kind);
    std::vector<LayerKind> kinds;
    for (const YamlNode& node : YamlNode::shipped("models/operators/layers.yaml").items()) {
      auto own = coded.extract(node.at("kind").text());
      read_kind(node, kinds.emplace_back(own ? std::move(own.mapped()) : LayerKind{}));
    }
    if (!coded.empty()) throw std::logic_error("layers.yaml has no kind " + coded.begin()->first);
    return kinds;
  }();
  return kKinds;
}

const LayerKind& layer_kind(const std::string& name) {
  return named(layer_kinds(), &LayerKind::name, "layer kind", name);
}

Shape output_of(const Layer& layer) {
  const LayerKind& kind = layer_kind(layer.kind);
  if (std::ssize(layer.input) < kind.input.least || std::ssize(layer.input) > kind.input.most)
    throw InputError(layer.kind + " needs " + kind.input.words + ", its input is " + shape_text(layer.input) +
                     kind.input.remedy);
  return kind.output ? kind.output(layer) : layer.input;
}

std::int64_t adapter_rank(const Layer& layer) { return value_or(layer.sizes, "lora", 0); }

std::vector<LayerTensor> parameters_of(const Layer& layer) {
  const std::int64_t rank = adapter_rank(layer);
  std::vector<LayerTensor> all = layer_kind(layer.kind).parameters(layer);
  std::vector<LayerTensor> adapters;
  for (LayerTensor& one : all) {
    one.frozen = layer.frozen;
    if (rank == 0 || one.shape.size() != 2) continue;
    const std::string stem = one.suffix.substr(0, one.suffix.size() - std::string("weight").size());
    adapters.push_back({stem + "lora_A.weight", {rank, one.shape[1]}});
    adapters.push_back({stem + "lora_B.weight", {one.shape[0], rank}});
  }
  all.insert(all.end(), adapters.begin(), adapters.end());
  return all;
}

LayerCost cost_of(const Layer& layer) {
  const LayerKind& kind = layer_kind(layer.kind);
  const auto traffic = [&](PerElement per) {
    return float32_bytes(per.in * in(layer) + per.out * out(layer));
  };
  LayerCost cost{.is_view = kind.is_view,
                 .saves_input = kind.each.kept == Kept::kInput,
                 .saves_output = kind.each.kept == Kept::kOutput};
  Kernel own{.flop = Flop(kind.each.flop * out(layer)),
             .forward = traffic(kind.each.forward),
             .backward = traffic(kind.each.backward)};
  if (kind.gemm != nullptr) own.compute(kind.gemm(layer));
  cost.kernels.push_back(own);
  if (kind.adjust) kind.adjust(layer, cost);
  if (layer.frozen) freeze(cost);
  if (const std::int64_t rank = adapter_rank(layer); rank > 0) add_adapters(static_cast<double>(rank), cost);
  return cost;
}

std::string full_name(const Layer& layer, const std::string& suffix) {
  return layer.name.empty() ? suffix : layer.name + "." + suffix;
}

std::int64_t numel(const Shape& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies());
}

}  // namespace stepcast
