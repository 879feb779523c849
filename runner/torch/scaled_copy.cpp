#include "runner/torch/scaled_copy.hpp"

#include <torch/torch.h>

namespace stepcast {

std::function<void()> prepare_scaled_copy(float* to, float* from, float scale, std::size_t count) {
  const auto size = static_cast<std::int64_t>(count);
  return [target = torch::from_blob(to, {size}), source = torch::from_blob(from, {size}),
          factor = torch::scalar_tensor(scale)]() mutable { at::mul_out(target, source, factor); };
}

}  // namespace stepcast
