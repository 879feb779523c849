#pragma once

#include <cstddef>

#include "runner/backend/backend.hpp"

/// What copies and combines gradients do to memory, without LibTorch.
namespace stepcast {

/// to[i] = scale * from[i], converted where one of both is half precision (arithmetic is in float32). Both
/// may be the same memory. \pre equal counts; float32, or one of them float16
void copy_scaled(const Array& to, const Array& from, double scale);

/// into[i] += scale * from[i]. \pre equal counts, float32
void add_scaled(const Array& into, const Array& from, double scale);

}  // namespace stepcast
