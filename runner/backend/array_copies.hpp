#pragma once

#include <cstddef>

#include "runner/backend/backend.hpp"

/// What copies, sums and conversions of arrays do to memory, without LibTorch.
namespace stepcast {

/// to[i] = scale * from[i], converted where one of both has 2 bytes (arithmetic is in float32). Both may be the
/// same memory where nothing is converted. \pre equal counts; float32, or one of them float16 or bfloat16
void copy_scaled(const Array& to, const Array& from, double scale);

/// into[i] += scale * from[i]. \pre equal counts, float32
void add_scaled(const Array& into, const Array& from, double scale);

/// Sums of IEEE 754 half-precision numbers: result[i] = a[i] + b[i], rounded to nearest even (float32 holds a
/// sum of two halves exactly enough that it is rounded once). Results may be the same memory as a or b. A sum
/// that is not a number is some NaN. Not gloo::sum<gloo::float16>: gloo 0.5's assignment of a float16
/// compares bits with a value and now and then leaves the left operand as the sum, as in 0x6331 + 0x75f9.
///
/// By F16C, eight at a time, where the processor has it. 8 MiB on a Sapphire Rapids core, per element
/// compared with float32 (0.78 to 0.90 ms): a third of the time (0.54 to 0.59 ms); one by one, with gloo's
/// conversions, 20 times (30 to 34 ms), and 45 times as gloo::sum<gloo::float16> does it (77 to 79 ms).
void sum_float16(void* result, const void* a, const void* b, std::size_t count);

/// On any processor, by gloo's conversions.
void sum_float16_portable(void* result, const void* a, const void* b, std::size_t count);

/// Likewise of bfloat16, the upper half of a float32, sixteen at a time by AVX2 where the processor has it.
void sum_bfloat16(void* result, const void* a, const void* b, std::size_t count);
void sum_bfloat16_portable(void* result, const void* a, const void* b, std::size_t count);
/// to[i] = scale * from[i], rounded to nearest even; what is not a number becomes some NaN.
void float_to_bfloat16(void* to, const float* from, float scale, std::size_t count);
/// to[i] = scale * from[i].
void bfloat16_to_float(float* to, const void* from, float scale, std::size_t count);

/// to[i] = scale * from[i], rounded to nearest even; by F16C where the processor has it.
void float_to_float16(void* to, const float* from, float scale, std::size_t count);
/// to[i] = scale * from[i], likewise.
void float16_to_float(float* to, const void* from, float scale, std::size_t count);

}  // namespace stepcast
