#include "runner/backend/array_copies.hpp"

#include <cassert>
#include <cstring>

#include "runner/backend/float16_sum.hpp"

namespace stepcast {
namespace {

float* floats(const Array& array) { return static_cast<float*>(array.data); }

void copy_floats(float* __restrict to, const float* __restrict from, float scale, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) to[i] = scale * from[i];
}

}  // namespace

void copy_scaled(const Array& to, const Array& from, double scale) {
  assert(to.count == from.count);
  const auto factor = static_cast<float>(scale);
  const bool to_half = to.type == DataType::kFloat16;
  const bool from_half = from.type == DataType::kFloat16;
  assert(!(to_half && from_half));
  if (to_half) return float_to_float16(to.data, floats(from), factor, to.count);
  if (from_half) return float16_to_float(floats(to), from.data, factor, to.count);
  if (to.data == from.data) {
    for (std::size_t i = 0; i < to.count; ++i) floats(to)[i] *= factor;
  } else if (scale == 1.0) {
    std::memcpy(to.data, from.data, to.bytes());
  } else {
    copy_floats(floats(to), floats(from), factor, to.count);
  }
}

void add_scaled(const Array& into, const Array& from, double scale) {
  assert(into.count == from.count);
  const auto factor = static_cast<float>(scale);
  float* __restrict to = floats(into);
  const float* __restrict added = floats(from);
  for (std::size_t i = 0; i < into.count; ++i) to[i] += factor * added[i];
}

}  // namespace stepcast
