#include "runner/backend/float16_sum.hpp"

#include <gloo/types.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace stepcast {

void sum_float16_portable(void* result, const void* a, const void* b, std::size_t count) {
  auto* const to = static_cast<gloo::float16*>(result);
  const auto* const left = static_cast<const gloo::float16*>(a);
  const auto* const right = static_cast<const gloo::float16*>(b);
  for (std::size_t i = 0; i < count; ++i)
    to[i].x = gloo::cpu_float2half_rn(gloo::cpu_half2float(left[i]) + gloo::cpu_half2float(right[i])).x;
}

namespace {

void to_half_portable(gloo::float16* to, const float* from, float scale, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) to[i].x = gloo::cpu_float2half_rn(scale * from[i]).x;
}

void to_float_portable(float* to, const gloo::float16* from, float scale, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) to[i] = scale * gloo::cpu_half2float(from[i]);
}

}  // namespace

#if defined(__x86_64__)
namespace {

constexpr std::size_t kWidth = 8;  // halves that F16C converts at once

/// F16C's bit of cpuid, since clang 14's __builtin_cpu_supports does not know it; AVX also asks for the
/// operating system's support.
bool has_f16c() {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  return __builtin_cpu_supports("avx") != 0 && __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 &&
         (ecx & bit_F16C) != 0;
}

__attribute__((target("avx,f16c"))) void sum_by_f16c(gloo::float16* result, const gloo::float16* a,
                                                     const gloo::float16* b, std::size_t count) {
  const std::size_t whole = count - count % kWidth;
  for (std::size_t i = 0; i < whole; i += kWidth) {
    const __m256 left = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(a + i)));
    const __m256 right = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(b + i)));
    const __m256 sum = _mm256_add_ps(left, right);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(result + i),
                     _mm256_cvtps_ph(sum, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  sum_float16_portable(result + whole, a + whole, b + whole, count - whole);
}

__attribute__((target("avx,f16c"))) void to_half_by_f16c(gloo::float16* to, const float* from, float scale,
                                                         std::size_t count) {
  const std::size_t whole = count - count % kWidth;
  const __m256 factor = _mm256_set1_ps(scale);
  for (std::size_t i = 0; i < whole; i += kWidth) {
    const __m256 scaled = _mm256_mul_ps(_mm256_loadu_ps(from + i), factor);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i),
                     _mm256_cvtps_ph(scaled, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  to_half_portable(to + whole, from + whole, scale, count - whole);
}

__attribute__((target("avx,f16c"))) void to_float_by_f16c(float* to, const gloo::float16* from, float scale,
                                                          std::size_t count) {
  const std::size_t whole = count - count % kWidth;
  const __m256 factor = _mm256_set1_ps(scale);
  for (std::size_t i = 0; i < whole; i += kWidth) {
    const __m256 wide = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i)));
    _mm256_storeu_ps(to + i, _mm256_mul_ps(wide, factor));
  }
  to_float_portable(to + whole, from + whole, scale, count - whole);
}

const bool kHasF16c = has_f16c();

}  // namespace

void sum_float16(void* result, const void* a, const void* b, std::size_t count) {
  if (!kHasF16c) return sum_float16_portable(result, a, b, count);
  sum_by_f16c(static_cast<gloo::float16*>(result), static_cast<const gloo::float16*>(a),
              static_cast<const gloo::float16*>(b), count);
}

void float_to_float16(void* to, const float* from, float scale, std::size_t count) {
  auto* const halves = static_cast<gloo::float16*>(to);
  kHasF16c ? to_half_by_f16c(halves, from, scale, count) : to_half_portable(halves, from, scale, count);
}

void float16_to_float(float* to, const void* from, float scale, std::size_t count) {
  const auto* const halves = static_cast<const gloo::float16*>(from);
  kHasF16c ? to_float_by_f16c(to, halves, scale, count) : to_float_portable(to, halves, scale, count);
}
#else
void sum_float16(void* result, const void* a, const void* b, std::size_t count) {
  sum_float16_portable(result, a, b, count);
}

void float_to_float16(void* to, const float* from, float scale, std::size_t count) {
  to_half_portable(static_cast<gloo::float16*>(to), from, scale, count);
}

void float16_to_float(float* to, const void* from, float scale, std::size_t count) {
  to_float_portable(to, static_cast<const gloo::float16*>(from), scale, count);
}
#endif

}  // namespace stepcast
