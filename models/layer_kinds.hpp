#pragma once

#include <string>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "models/layer.hpp"

/// Vocabulary for writing kinds of layers; each file of kinds is a part of the table.
namespace stepcast {

std::vector<LayerKind> image_kinds();
std::vector<LayerKind> general_kinds();
std::vector<LayerKind> embedding_kinds();
std::vector<LayerKind> norm_kinds();
std::vector<LayerKind> attention_kinds();
std::vector<LayerKind> expert_kinds();
std::vector<LayerKind> parallel_kinds();

inline constexpr double kInt64 = 8.0;  // bytes

inline double in(const Layer& layer) { return static_cast<double>(numel(layer.input)); }
inline double out(const Layer& layer) { return static_cast<double>(numel(layer.output)); }
inline std::int64_t size(const Layer& layer, const char* key) { return layer.sizes.at(key); }
inline double number(const Layer& layer, const char* key) { return static_cast<double>(size(layer, key)); }
inline bool flag(const Layer& layer, const char* key) { return size(layer, key) != 0; }

inline std::string shape_text(const Shape& shape) {
  std::string text;
  for (const std::int64_t extent : shape) text += (text.empty() ? "" : "x") + std::to_string(extent);
  return text.empty() ? "nothing" : text;
}

/// \throws InputError that names both numbers if `count` of `what` cannot be divided evenly among `parts`
inline void expect_divisible(const std::string& what, std::int64_t count, std::int64_t parts) {
  if (count % parts != 0) throw InputError("{} {} cannot be divided among {} ranks", what, count, parts);
}

inline void expect_percent(const Layer& layer, const char* key) {
  if (size(layer, key) >= 100)
    throw InputError("{} is a percentage below 100, found {}", key, size(layer, key));
}

/// Dropout as PyTorch runs it on a CPU: noise is drawn, divided by 1 - p and multiplied with x; the noise is
/// saved. Reads and writes per element.
struct DropoutCost {
  double forward = 6.0;  // the noise is written, read and written, then x and noise are read and y is written
  double backward = 3.0;
  double kept = 1.0;
  // On a GPU one kernel draws the noise, of one byte per element, and applies it.
  double forward_cpu_only = 3.5, backward_cpu_only = 0.5;
};
inline DropoutCost dropout_cost(std::int64_t percent) {
  return percent > 0 ? DropoutCost{} : DropoutCost{0.0, 0.0, 0.0, 0.0, 0.0};
}

inline const InputForm kSequence{2, 2, "sequence x features"};

/// Traffic of a GEMM: forward reads x and writes y; backward reads dy twice (for dx and for dw) and x, and
/// writes dx.
inline constexpr PerElement kGemmForward{1, 1}, kGemmBackward{2, 2};

/// A function of each element alone: backward reads dy and the saved tensor, and writes dx.
inline LayerKind element_wise(const std::string& name, bool saves_input) {
  return {.name = name,
          .flop = 1,
          .forward = {0, 2},
          .backward = {0, 3},
          .saves_input = saves_input,
          .saves_output = !saves_input};
}

/// Adds elements that are read and written.
inline void add_traffic(LayerWork& work, double forward, double backward) {
  work.forward_traffic += float32_bytes(forward);
  work.backward_traffic += float32_bytes(backward);
}

/// Adds numbers that are saved in fp32 in every precision, such as statistics of norms.
inline void save_in_float32(double count, LayerCost& cost) {
  cost.saved_extra += float32_bytes(count);
  cost.work.in_float32.kept += count;
}

/// PyTorch's kernels one by one, without a compiler that fuses them: in fp32, so that in other dtypes x is
/// cast and the result is cast back. Elements of x:
///
///     RMS norm, ATen's until 2.8    forward: square 2, mean 1, times 1/rms 2, times the weight 2;
///                                   backward: times weight and 1/rms 4, their gradients 4 + 4, of the
///                                   mean 1, of the square 2 + 2 + 3, their sum 3
///     rotary positions              one complex product each way, 2
///
/// A norm saves x and x/rms.
struct EagerCost {
  double forward, backward, kept;
  int kernels;
};
inline constexpr EagerCost kEagerRmsNorm{7.0, 23.0, 2.0, 8}, kEagerRotary{2.0, 2.0, 0.0, 3};

inline void add_eager(const EagerCost& each, double elements, LayerCost& cost) {
  add_traffic(cost.work, each.forward * elements, each.backward * elements);
  cost.work.forward_kernels += each.kernels;
  cost.saved_extra += float32_bytes(each.kept * elements);
  InFloat32& wide = cost.work.in_float32;
  wide.forward += each.forward * elements;
  wide.backward += each.backward * elements;
  wide.forward_casts += 2.0 * elements;
  wide.backward_casts += 2.0 * elements;
  wide.kept += each.kept * elements;
}

/// A tensor `weight` and, with `bias`, a tensor `bias` of its first extent.
template <class... Extents>
std::vector<LayerTensor> weight_and_bias(bool bias, std::int64_t first, Extents... others) {
  std::vector<LayerTensor> result{{"weight", {first, others...}}};
  if (bias) result.push_back({"bias", {first}});
  return result;
}

}  // namespace stepcast
