#pragma once

#include <string>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "models/layer.hpp"

/// What the kinds of layers are written with; each file of kinds is a part of the table.
namespace stepcast {

std::vector<LayerKind> image_kinds();
std::vector<LayerKind> general_kinds();
std::vector<LayerKind> transformer_kinds();
std::vector<LayerKind> parallel_kinds();

inline constexpr double kInt64 = 8.0;  // bytes

inline double in(const Layer& layer) { return static_cast<double>(numel(layer.input)); }
inline double out(const Layer& layer) { return static_cast<double>(numel(layer.output)); }
inline double number(const Layer& layer, const char* key) { return static_cast<double>(layer.sizes.at(key)); }

inline std::string shape_text(const Shape& shape) {
  std::string text;
  for (const std::int64_t extent : shape) text += (text.empty() ? "" : "x") + std::to_string(extent);
  return text.empty() ? "nothing" : text;
}

/// One scale and one shift for each of `count` features.
inline std::vector<LayerTensor> scale_and_shift(std::int64_t count) {
  return {{"weight", {count}}, {"bias", {count}}};
}

inline const InputForm kSequence{2, 2, "sequence x features"};

/// A product of matrices: forward reads x and writes y; backward reads dy twice (for dx and for dw) and x, and
/// writes dx.
inline constexpr PerElement kMatrixForward{1, 1}, kMatrixBackward{2, 2};

/// A function of each element alone: backward reads dy and what was kept, and writes dx.
inline LayerKind element_wise(const std::string& name, const std::string& torch_class, bool keeps_input) {
  return {.name = name,
          .torch_class = torch_class,
          .flop = 1,
          .forward = {0, 2},
          .backward = {0, 3},
          .saves_input = keeps_input,
          .saves_output = !keeps_input};
}

inline std::vector<LayerTensor> weight_and_bias(const Layer& layer, Shape weight) {
  std::vector<LayerTensor> result{{"weight", std::move(weight)}};
  if (layer.sizes.at("bias") != 0) result.push_back({"bias", {layer.sizes.at("out")}});
  return result;
}

}  // namespace stepcast
