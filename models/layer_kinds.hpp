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
std::vector<LayerKind> attention_kinds();
std::vector<LayerKind> parallel_kinds();

inline constexpr double kInt64 = 8.0;  // bytes

inline double in(const Layer& layer) { return static_cast<double>(numel(layer.input)); }
inline double out(const Layer& layer) { return static_cast<double>(numel(layer.output)); }
inline double number(const Layer& layer, const char* key) { return static_cast<double>(layer.sizes.at(key)); }
inline bool says(const Layer& layer, const char* flag) { return layer.sizes.at(flag) != 0; }

inline std::string shape_text(const Shape& shape) {
  std::string text;
  for (const std::int64_t extent : shape) text += (text.empty() ? "" : "x") + std::to_string(extent);
  return text.empty() ? "nothing" : text;
}

/// One scale and one shift for each of `count` features.
inline std::vector<LayerTensor> scale_and_shift(std::int64_t count) {
  return {{"weight", {count}}, {"bias", {count}}};
}

/// One of several modules that make up a layer.
struct LayerPart {
  std::string name;
  std::int64_t count;  ///< rows of a table, outputs of a projection
};

inline void expect_percent(const Layer& layer, const std::string& key) {
  if (layer.sizes.at(key) >= 100)
    throw InputError(key + " is a percentage below 100, found " + std::to_string(layer.sizes.at(key)));
}

/// As PyTorch makes it on a CPU: noise is drawn, divided by 1 - p and multiplied with x; the noise is kept.
/// Reads and writes per element.
struct DropoutCost {
  double forward = 6.0;  // the noise is written, read and written, then x and noise are read and y is written
  double backward = 3.0;
  double kept = 1.0;
  // On a GPU one kernel draws the noise, of one byte per element, and applies it.
  double forward_cpu_only = 3.5, backward_spared = 0.5;
};
inline DropoutCost dropout_cost(std::int64_t percent) {
  return percent > 0 ? DropoutCost{} : DropoutCost{0.0, 0.0, 0.0, 0.0, 0.0};
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

/// PyTorch's kernels one by one, as without a compiler that fuses them: in fp32, so that in other dtypes x is cast and what
/// comes of it is cast back. Elements of x:
///
///     RMS norm, ATen's until 2.8    forward: square 2, mean 1, times 1/rms 2, times the weight 2; backward: times weight and
///                                   1/rms 4, their gradients 4 + 4, of the mean 1, of the square 2 + 2 + 3, their sum 3
///     rotary positions              one complex product each way, 2
///
/// Kept of a norm: x and x/rms.
struct EagerCost {
  double forward, backward, kept;
  int kernels;
};
inline constexpr EagerCost kEagerRmsNorm{7.0, 23.0, 2.0, 8}, kEagerRotary{2.0, 2.0, 0.0, 3};

inline void add_eager(const EagerCost& each, double elements, LayerCost& cost) {
  cost.forward_traffic += float32_bytes(each.forward * elements);
  cost.backward_traffic += float32_bytes(each.backward * elements);
  cost.saved_besides += float32_bytes(each.kept * elements);
  cost.kernels += each.kernels;
  InFloat32& wide = cost.in_float32;
  wide.forward += each.forward * elements;
  wide.backward += each.backward * elements;
  wide.forward_casts += 2.0 * elements;
  wide.backward_casts += 2.0 * elements;
  wide.kept += each.kept * elements;
}

inline std::vector<LayerTensor> weight_and_bias(const Layer& layer, Shape weight) {
  std::vector<LayerTensor> result{{"weight", std::move(weight)}};
  if (layer.sizes.at("bias") != 0) result.push_back({"bias", {layer.sizes.at("out")}});
  return result;
}

}  // namespace stepcast
