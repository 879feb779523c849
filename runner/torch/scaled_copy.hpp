#pragma once

#include <torch/torch.h>

#include <functional>

namespace stepcast {

/// to = scale * from, converted to the dtype of `to`, in one pass, as c10d's Reducer copies gradients into
/// buckets: resolved now, done when called.
inline std::function<void()> scaled_copy(torch::Tensor to, const torch::Tensor& from, double scale) {
  if (scale == 1.0) return [to, from]() mutable { to.copy_(from); };
  const torch::Tensor factor = torch::scalar_tensor(scale, from.options());
  return [to, from, factor]() mutable { at::mul_out(to, from, factor); };
}

}  // namespace stepcast
