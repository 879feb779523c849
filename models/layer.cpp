#include "models/layer.hpp"

#include <algorithm>
#include <cassert>

#include "core/error.hpp"
#include "models/layer_kinds.hpp"

namespace stepcast {

std::string to_text(Unit unit) {
  const std::vector<std::string> words{"a whole number", "true or false", "a size such as 25MiB",
                                       "a time such as 2ms", "a name"};
  return words.at(static_cast<std::size_t>(unit));
}

const std::vector<LayerKind>& layer_kinds() {
  static const std::vector<LayerKind> kKinds = [] {
    std::vector<LayerKind> kinds;
    for (auto part : {image_kinds, general_kinds, transformer_kinds, attention_kinds, parallel_kinds})
      for (LayerKind& kind : part()) kinds.push_back(std::move(kind));
    return kinds;
  }();
  return kKinds;
}

std::vector<std::string> layer_kind_names() {
  std::vector<std::string> names;
  for (const LayerKind& kind : layer_kinds()) names.push_back(kind.name);
  return names;
}

const LayerKind& layer_kind(const std::string& name) {
  const auto& kinds = layer_kinds();
  const auto found = std::ranges::find(kinds, name, &LayerKind::name);
  assert(found != kinds.end());
  return *found;
}

Shape output_of(const Layer& layer) {
  const LayerKind& kind = layer_kind(layer.kind);
  if (layer.input.size() < kind.input.least || layer.input.size() > kind.input.most)
    throw InputError(layer.kind + " needs " + kind.input.words + ", its input is " + shape_text(layer.input) +
                     kind.input.remedy);
  return kind.output ? kind.output(layer) : layer.input;
}

LayerCost cost_of(const Layer& layer) {
  const LayerKind& kind = layer_kind(layer.kind);
  const auto traffic = [&](PerElement per) {
    return float32_bytes(per.in * in(layer) + per.out * out(layer));
  };
  LayerCost cost{.forward = Flop(kind.flop * out(layer)),
                 .forward_traffic = traffic(kind.forward),
                 .backward_traffic = traffic(kind.backward),
                 .is_view = kind.is_view,
                 .saves_input = kind.saves_input,
                 .saves_output = kind.saves_output};
  if (kind.product != nullptr) {
    const Gemm product = kind.product(layer);
    cost.forward = Flop(2.0 * product.rows * product.columns * product.depth);
    cost.products.push_back(product);
  }
  if (kind.adjust) kind.adjust(layer, cost);
  return cost;
}

std::string full_name(const Layer& layer, const std::string& suffix) {
  return layer.name.empty() ? suffix : layer.name + "." + suffix;
}

std::int64_t numel(const Shape& shape) {
  std::int64_t product = 1;
  for (const std::int64_t extent : shape) product *= extent;
  return product;
}

}  // namespace stepcast
