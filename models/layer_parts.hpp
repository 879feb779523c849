#pragma once

#include <string>
#include <utility>
#include <vector>

#include "models/layer.hpp"

/// What the entries of the layer table share: layer.cpp and transformer_layers.cpp, nothing else.
namespace stepcast::layer_parts {

inline Bytes elements(double count) {
  constexpr double kElement = 4.0;  // bytes of a float32
  return Bytes(kElement * count);
}
inline double in(const Layer& layer) { return static_cast<double>(numel(layer.input)); }
inline double out(const Layer& layer) { return static_cast<double>(numel(layer.output)); }

inline std::vector<LayerTensor> none(const Layer& /*layer*/) { return {}; }
inline Shape same(const Layer& layer) { return layer.input; }

inline std::string shape_text(const Shape& shape) {
  std::string text;
  for (std::size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : "x") + std::to_string(shape[i]);
  return text.empty() ? "nothing" : text;
}

inline std::vector<LayerTensor> weight_and_bias(const Layer& layer, Shape weight) {
  std::vector<LayerTensor> result{{"weight", std::move(weight)}};
  if (layer.sizes.at("bias") != 0) result.push_back({"bias", {layer.sizes.at("out")}});
  return result;
}

/// Forward reads x and writes y; backward reads dy twice (for dx and for dw) and x, and writes dx. Keeps x.
inline LayerCost matrix_cost(const Layer& layer, double multiply_adds) {
  return {.forward = Flop(2.0 * multiply_adds),
          .forward_traffic = elements(in(layer) + out(layer)),
          .backward_traffic = elements(2.0 * in(layer) + 2.0 * out(layer)),
          .saves_input = true};
}

/// A function of each element alone: reads x and writes y; backward reads dy and what was kept, and writes
/// dx.
inline LayerCost element_cost(const Layer& layer) {
  return {.forward = Flop(out(layer)),
          .forward_traffic = elements(2.0 * out(layer)),
          .backward_traffic = elements(3.0 * out(layer))};
}

std::vector<LayerKind> transformer_layer_kinds();  ///< transformer_layers.cpp

}  // namespace stepcast::layer_parts
