#pragma once

#include <string>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "core/table.hpp"
#include "models/layer.hpp"

/// Vocabulary for writing kinds of layers; each file of kinds has functions of a part of the table.
namespace stepcast {

class YamlNode;

std::vector<LayerKind> general_kinds();
std::vector<LayerKind> transformer_kinds();
std::vector<LayerKind> attention_kinds();
std::vector<LayerKind> expert_kinds();
std::vector<LayerKind> state_space_kinds();
std::vector<LayerKind> parallel_kinds();
std::vector<LayerKind> given_kinds();

/// `flop`, `forward`, `backward` and `kept` of a row of models/operators/*.yaml.
ElementCost read_element_cost(const YamlNode& node);

/// Moves collectives of tensor-parallel ranks with parts of the sequence into the layers that need them
/// inside (Layer::body): the gather of latents, and the gather and the sum around a shared expert, which they
/// divide.
void place_collectives(const Model& model, std::vector<Layer>& layers);
/// Notes the collectives of a loss over shared classes, and the workspace of the head.
void add_loss_costs(Model& model);
/// `tensor_enter` or `tensor_leave` of these ranks. \throws InputError if they cannot divide the input
Layer border_of(const char* kind, const ModelParallel& parallel, bool regathers, const Shape& input,
                bool bias = false);

/// Reduces a layer inside `tensor_parallel` to one rank's part of it. \param is_last its outputs are summed
/// over the ranks \throws InputError naming file and line if ranks cannot share it
void share_layer(const YamlNode& node, int ranks, bool is_last, Layer& layer);

inline constexpr double kInt64 = 8.0;  // bytes

inline double in(const Layer& layer) { return static_cast<double>(numel(layer.input)); }
inline double out(const Layer& layer) { return static_cast<double>(numel(layer.output)); }
inline std::int64_t size(const Layer& layer, const char* key) { return layer.sizes.at(key); }
inline double number(const Layer& layer, const char* key) { return static_cast<double>(size(layer, key)); }
inline bool flag(const Layer& layer, const char* key) { return size(layer, key) != 0; }
/// True if an all-to-all gives each context-parallel rank some heads of the whole sequence.
inline bool splits_heads(const Layer& layer) {
  return layer.sizes.contains("ulysses") && flag(layer, "ulysses") && size(layer, "context") > 1;
}

inline std::string shape_text(const Shape& shape) { return shape.empty() ? "nothing" : joined(shape, "x"); }

/// \throws InputError that names both numbers if `count` of `what` cannot be divided evenly among `parts`
inline void expect_divisible(const std::string& what, std::int64_t count, std::int64_t parts) {
  if (count % parts != 0) throw InputError("{} {} cannot be divided among {} ranks", what, count, parts);
}

inline void expect_percent(const Layer& layer, const char* key) {
  if (size(layer, key) >= 100)
    throw InputError("{} is a percentage below 100, found {}", key, size(layer, key));
}

/// A memory-bound kernel that reads and writes so many elements.
inline Kernel moves(double forward, double backward, int launches = 1, Moved moved = Moved::kCompute) {
  return {.forward = float32_bytes(forward),
          .backward = float32_bytes(backward),
          .launches = launches,
          .moved = moved};
}

/// The same with its launches in the backward, and its role.
inline Kernel moves(double forward, double backward, int launches, int backward_launches,
                    Moved moved = Moved::kCompute, KernelRole role = KernelRole::kOther) {
  Kernel kernel = moves(forward, backward, launches, moved);
  kernel.backward_launches = backward_launches;
  kernel.role = role;
  return kernel;
}

/// True for an operator that is a layer norm or an RMS norm.
inline bool names_norm(const std::string& operation) {
  return operation.find("layer_norm") != std::string::npos || operation.find("rms_norm") != std::string::npos;
}

/// A GEMM with a weight.
inline Kernel multiplies(const Gemm& gemm) {
  const double moved = gemm.times * gemm.rows * (gemm.depth + gemm.columns);
  Kernel kernel = moves(moved, 2.0 * moved, static_cast<int>(gemm.times));
  kernel.compute(gemm);
  return kernel;
}

inline void keep(double elements, Kernel& kernel) { kernel.kept.size += float32_bytes(elements); }
/// Keeps the input of a GEMM with weights, which recipes cast.
inline void keep_input(double elements, Kernel& kernel) {
  keep(elements, kernel);
  kernel.kept.gemm_inputs += float32_bytes(elements);
}
/// Keeps numbers in fp32 in every precision, such as statistics of norms.
inline void keep_in_float32(double count, Kernel& kernel) {
  keep(count, kernel);
  kernel.kept.float32 += float32_bytes(count);
}

/// Adds dropout of `elements` unless `percent` is 0. A GPU's kernel draws noise of one byte per element and
/// applies it. PyTorch on a CPU writes the noise, reads and writes it to divide it by 1 - p, then reads it
/// and x and writes y: 6 accesses, 3 in the backward. The noise is saved.
inline void add_dropout(std::int64_t percent, double elements, std::vector<Kernel>& kernels) {
  if (percent == 0) return;
  constexpr double kApplied = 2.5, kNoise = 3.5, kNoiseBackward = 0.5;
  Kernel& kernel = kernels.emplace_back(moves(kApplied * elements, kApplied * elements));
  keep(elements, kernel);
  kernel.kept.masks = kernel.kept.size;
  kernels.push_back(moves(kNoise * elements, kNoiseBackward * elements, 0, Moved::kNoise));
}

/// PyTorch's kernels one by one, without a compiler that fuses them: in fp32, so that in other dtypes x is
/// cast and the result is cast back. Elements of x:
///
///     RMS norm, ATen's until 2.8    forward: square 2, mean 1, times 1/rms 2, times the weight 2;
///                                   backward: times weight and 1/rms 4, their gradients 4 + 4, of the
///                                   mean 1, of the square 2 + 2 + 3, their sum 3
///     rotary positions              one complex product each way, 2
///
/// A norm saves x in fp32, and for the gradient of its weight x/rms in the dtype of x, in which transformers
/// and PyTorch until 2.6 multiply it. Besides x itself, which the caller counts, that is one element in fp32.
struct EagerCost {
  double forward, backward, kept;
  int kernels;
};
inline constexpr EagerCost kEagerRmsNorm{7.0, 23.0, 1.0, 8}, kEagerRotary{2.0, 2.0, 0.0, 3};

inline void add_eager(const EagerCost& each, double elements, bool frozen, LayerCost& cost) {
  Kernel& kernel = cost.kernels.emplace_back(
      moves(each.forward * elements, each.backward * elements, each.kernels, Moved::kFloat32));
  keep_in_float32(each.kept * elements, kernel);
  if (frozen) kernel.kept.size = Bytes(0);  // x is kept in fp32 in every precision, in place of its copy
  cost.kernels.push_back(moves(2.0 * elements, 2.0 * elements, 0, Moved::kCast));
}

/// A tensor `weight` and, with `bias`, a tensor `bias` of its first extent.
template <class... Extents>
std::vector<LayerTensor> weight_and_bias(bool bias, std::int64_t first, Extents... others) {
  std::vector<LayerTensor> result{{"weight", {first, others...}}};
  if (bias) result.push_back({"bias", {first}});
  return result;
}

}  // namespace stepcast
