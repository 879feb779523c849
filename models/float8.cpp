#include <algorithm>
#include <cmath>

#include "core/error.hpp"
#include "models/model.hpp"

/// Products in float8 (Micikevicius et al., "FP8 Formats for Deep Learning", 2022), as Transformer Engine and torchao have them.
namespace stepcast {
namespace {

constexpr double kGranule = 16.0;  // elements of which an operand's rows are a multiple
constexpr double kCast =
    2.0 + 2.0;  // bytes moved for an element: read in 16 bit, and written by rows and by columns

bool fits(const Gemm& product) {
  return product.heads <= 0.0 && !product.chooses && std::fmod(product.columns, kGranule) == 0.0 &&
         std::fmod(product.depth, kGranule) == 0.0;
}

/// Bytes moved to cast an element, by which width it has. Where ranks gather `hidden` features of all positions, each casts its
/// own positions, by rows, and of what is gathered a copy by columns is made.
struct CastBytes {
  double hidden, others;
  std::int64_t width;
  [[nodiscard]] double of(double features) const {
    return features == static_cast<double>(width) ? hidden : others;
  }
};

/// Casts of the input, of weights where they do not come in float8, and of the gradients of the outputs.
void cast(LayerWork& work, bool weights, const CastBytes& bytes) {
  const Gemm* before = nullptr;
  for (Gemm& product : work.products) {
    if (!fits(product)) continue;
    product.float8 = true;
    const double inputs = product.rows * product.depth * product.times;
    const bool is_cast = before != nullptr && before->rows == product.rows && before->depth == product.depth;
    if (!is_cast) {
      work.forward_traffic += Bytes(bytes.of(product.depth) * inputs);
      work.forward_kernels += static_cast<int>(product.times);
    }
    before = &product;
    if (weights) {
      work.forward_weights += Bytes(kCast * product.columns * product.depth * product.times);
      work.forward_kernels += static_cast<int>(product.times);
    }
    if (work.backward_kernels == 0) continue;
    work.backward_traffic +=
        Bytes(bytes.of(product.columns) * product.rows * product.columns * product.times);
    work.backward_kernels += static_cast<int>(product.times);
  }
}

bool is_weight(const Parameter& parameter, const Segment& segment) {
  const auto multiplies = [&](const Gemm& product) {
    return product.float8 && product.columns == static_cast<double>(parameter.shape.front()) &&
           product.depth == static_cast<double>(parameter.shape.back());
  };
  return parameter.shape.size() == 2 && std::ranges::any_of(segment.work, [&](const LayerWork& work) {
           return std::ranges::any_of(work.products, multiplies);
         });
}

}  // namespace

void multiply_in_float8(Model& model) {
  const double part = bytes_of("fp8") / bytes_of(model.precision.compute);
  const bool gathered = model.precision.gather == "fp8";
  bool any = false;
  for (Segment& segment : model.segments) {
    if (!segment.repeated) continue;
    const bool in_parts = model.tensor > 1 && model.sequence_parallel;
    const CastBytes bytes{in_parts ? 3.0 / model.tensor + 2.0 : kCast, kCast, segment.output.back()};
    for (std::vector<LayerWork>* works : {&segment.work, &segment.recomputed})
      for (LayerWork& work : *works) cast(work, !gathered, bytes);
    Bytes& inputs =
        model.recomputed_part == RecomputedPart::kOperations ? segment.recomputed_size : segment.saved_size;
    inputs = inputs - (1.0 - part) * segment.linear_size;
    for (const int index : segment.exchanges)
      if (LayerCollective& exchange = model.exchanges[static_cast<std::size_t>(index)];
          exchange.kind == ExchangeKind::kAllGather && exchange.group == ExchangeGroup::kTensor) {
        exchange.per_sample = part * exchange.per_sample;
        if (!model.batch_first || exchange.work == static_cast<int>(segment.work.size())) continue;
        LayerWork& copied = segment.work[static_cast<std::size_t>(exchange.work)];
        Bytes& traffic = exchange.backward ? copied.backward_traffic : copied.forward_traffic;
        traffic = part * traffic;
      }
    for (const int index : segment.parameters) {
      Parameter& parameter = model.parameters[static_cast<std::size_t>(index)];
      parameter.float8 = is_weight(parameter, segment);
      if (!parameter.float8) continue;
      any = true;
      const auto count = static_cast<double>(parameter.numel());
      if (gathered)
        parameter.spared = parameter.size - Bytes(bytes_of("fp8") * count);
      else
        parameter.copies = Bytes(2.0 * bytes_of("fp8") * count);
    }
  }
  if (!any)
    throw InputError("precision fp8: '" + model.specification +
                     "' has no blocks of a `repeat` with linear layers of multiples of 16, which are what it "
                     "multiplies in "
                     "float8; take bf16");
}

}  // namespace stepcast
