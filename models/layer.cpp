#include "models/layer.hpp"

#include <algorithm>
#include <cassert>
#include <functional>
#include <numeric>

#include "core/enum_table.hpp"
#include "core/error.hpp"
#include "models/layer_kinds.hpp"

namespace stepcast {

std::string to_text(Unit unit) {
  constexpr auto kUnits = enum_names<Unit>("a whole number", "true or false", "a size such as 25MiB",
                                           "a time such as 2ms", "a name");
  return row_of(kUnits, unit).name;
}

const std::vector<LayerKind>& layer_kinds() {
  static const std::vector<LayerKind> kKinds = [] {
    std::vector<LayerKind> kinds;
    for (auto part : {image_kinds, general_kinds, embedding_kinds, norm_kinds, prediction_kinds,
                      attention_kinds, expert_kinds, state_space_kinds, parallel_kinds, given_kinds})
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
  LayerCost cost{.is_view = kind.is_view, .saves_input = kind.saves_input, .saves_output = kind.saves_output};
  Kernel own{.flop = Flop(kind.flop * out(layer)),
             .forward = traffic(kind.forward),
             .backward = traffic(kind.backward)};
  if (kind.gemm != nullptr) {
    const Gemm gemm = kind.gemm(layer);
    own.computes = gemm;
    own.flop = Flop(gemm.flop());
  }
  cost.kernels.push_back(own);
  if (kind.adjust) kind.adjust(layer, cost);
  return cost;
}

std::string full_name(const Layer& layer, const std::string& suffix) {
  return layer.name.empty() ? suffix : layer.name + "." + suffix;
}

std::int64_t numel(const Shape& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies());
}

}  // namespace stepcast
