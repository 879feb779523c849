#pragma once

#include <cstddef>
#include <functional>

namespace stepcast {

/// to[i] = scale * from[i] by LibTorch, as gradients are copied into buckets: resolved now, done when called.
/// \pre both arrays live until then
std::function<void()> prepare_scaled_copy(float* to, float* from, float scale, std::size_t count);

}  // namespace stepcast
