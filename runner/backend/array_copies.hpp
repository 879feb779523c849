#pragma once

#include <cstddef>

#include "runner/backend/backend.hpp"

/// Copies, sums and conversions of arrays, without LibTorch.
namespace stepcast {

/// to[i] = scale * from[i], converted if one of both has 2 bytes (arithmetic is in float32). Both may be the
/// same memory if nothing is converted. \pre equal counts; float32, or one of them float16 or bfloat16
void copy_scaled(const Array& to, const Array& from, double scale);

/// into[i] += scale * from[i]. \pre equal counts, float32
void add_scaled(const Array& into, const Array& from, double scale);

/// Loops over numbers of 2 bytes. Results are rounded to nearest even; one that is not a number is some NaN.
/// A sum may be in the memory of a or b. (The float32 sum of two halves is exact enough to be rounded once.)
/// Replaces gloo::sum<gloo::float16>: the assignment of gloo 0.5's float16 compares bits with a value and
/// sometimes keeps the left operand as the sum, as in 0x6331 + 0x75f9.
///
/// Eight at a time if the CPU has F16C and AVX2. Sum of 8 MiB of float16 on a Sapphire Rapids core, per
/// element relative to float32 (0.78 to 0.90 ms): one third (0.54 to 0.59 ms); one by one with gloo's
/// conversions 20 times (30 to 34 ms); gloo::sum<gloo::float16> 45 times (77 to 79 ms).
struct TwoByteLoops {
  void (*sum)(void* result, const void* a, const void* b, std::size_t count);  ///< result[i] = a[i] + b[i]
  void (*round)(void* to, const float* from, float scale, std::size_t count);  ///< to[i] = scale * from[i]
  void (*widen)(float* to, const void* from, float scale, std::size_t count);  ///< to[i] = scale * from[i]
};

/// Loops over float16, or over bfloat16, the upper half of a float32; null for other types.
const TwoByteLoops* two_byte_loops(DataType type);

}  // namespace stepcast
