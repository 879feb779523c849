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

/// Sums of IEEE 754 half-precision numbers: result[i] = a[i] + b[i], rounded to nearest even. (The float32
/// sum of two halves is exact enough to be rounded once.) The result may be the same memory as a or b. A sum
/// that is not a number is some NaN. Replaces gloo::sum<gloo::float16>: the assignment of gloo 0.5's float16
/// compares bits with a value and sometimes keeps the left operand as the sum, as in 0x6331 + 0x75f9.
///
/// Uses F16C, eight at a time, if the CPU has F16C and AVX2. 8 MiB on a Sapphire Rapids core, per element
/// relative to float32 (0.78 to 0.90 ms): one third (0.54 to 0.59 ms); one by one with gloo's conversions 20
/// times (30 to 34 ms); gloo::sum<gloo::float16> 45 times (77 to 79 ms).
void sum_float16(void* result, const void* a, const void* b, std::size_t count);

/// The same on any CPU, with gloo's conversions.
void sum_float16_portable(void* result, const void* a, const void* b, std::size_t count);

/// Sums of bfloat16, the upper half of a float32; eight at a time if the CPU has AVX2.
void sum_bfloat16(void* result, const void* a, const void* b, std::size_t count);
void sum_bfloat16_portable(void* result, const void* a, const void* b, std::size_t count);
/// to[i] = scale * from[i], rounded to nearest even; a result that is not a number is some NaN.
void float_to_bfloat16(void* to, const float* from, float scale, std::size_t count);
/// to[i] = scale * from[i].
void bfloat16_to_float(float* to, const void* from, float scale, std::size_t count);

/// to[i] = scale * from[i], rounded to nearest even; by F16C if the CPU has it.
void float_to_float16(void* to, const float* from, float scale, std::size_t count);
/// to[i] = scale * from[i]; by F16C if the CPU has it.
void float16_to_float(float* to, const void* from, float scale, std::size_t count);

}  // namespace stepcast
