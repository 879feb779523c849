#pragma once

#include <torch/torch.h>

#include <functional>

#include "runner/backend/array_copies.hpp"
#include "runner/torch/unit_shards.hpp"

namespace stepcast {

/// Returns a function that sets to = scale * from, converted to the dtype of `to`, in one pass, as c10d's
/// Reducer copies gradients into buckets.
inline std::function<void()> scaled_copy(torch::Tensor to, const torch::Tensor& from, double scale) {
  const bool converts = to.scalar_type() != from.scalar_type() && torch::kFloat16 != to.scalar_type();
  if (converts && !to.is_cpu())  // mul_out would round the product to the shorter dtype first
    return [to, from, scale]() mutable {
      to.copy_(from);
      if (scale != 1.0) to.mul_(scale);
    };
  if (converts) return [to, from, scale] { copy_scaled(array_of(to), array_of(from), scale); };
  if (scale == 1.0) return [to, from]() mutable { to.copy_(from); };
  const bool is_bfloat16 = from.scalar_type() == torch::kBFloat16;  // in which 1/3 is too large by 0.2 %
  const torch::Tensor factor =
      torch::scalar_tensor(scale, is_bfloat16 ? torch::kFloat32 : from.scalar_type());
  return [to, from, factor]() mutable { at::mul_out(to, from, factor); };
}

}  // namespace stepcast
