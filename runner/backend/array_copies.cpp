#include "runner/backend/array_copies.hpp"

#include <gloo/types.h>

#include <bit>
#include <cassert>
#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace stepcast {
namespace {

float* floats(const Array& array) { return static_cast<float*>(array.data); }

void copy_floats(float* __restrict to, const float* __restrict from, float scale, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) to[i] = scale * from[i];
}

/// Conversions of IEEE 754 halves by gloo, one by one.
void sum_portable(gloo::float16* result, const gloo::float16* a, const gloo::float16* b, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i)
    result[i].x = gloo::cpu_float2half_rn(gloo::cpu_half2float(a[i]) + gloo::cpu_half2float(b[i])).x;
}

void to_half_portable(gloo::float16* to, const float* from, float scale, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) to[i].x = gloo::cpu_float2half_rn(scale * from[i]).x;
}

void to_float_portable(float* to, const gloo::float16* from, float scale, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) to[i] = scale * gloo::cpu_half2float(from[i]);
}

constexpr unsigned kUpperHalf = 16;

float widened(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << kUpperHalf);
}

std::uint16_t rounded(float value) {
  constexpr std::uint16_t kNan = 0x7fc0;
  constexpr std::uint32_t kBelowHalf = 0x7fff;
  if (std::isnan(value)) return kNan;
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<std::uint16_t>((bits + kBelowHalf + (bits >> kUpperHalf & 1U)) >> kUpperHalf);
}

void sum_bf16_portable(std::uint16_t* result, const std::uint16_t* a, const std::uint16_t* b,
                       std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) result[i] = rounded(widened(a[i]) + widened(b[i]));
}

void to_bf16_portable(std::uint16_t* to, const float* from, float scale, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) to[i] = rounded(scale * from[i]);
}

void from_bf16_portable(float* to, const std::uint16_t* from, float scale, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) to[i] = scale * widened(from[i]);
}

#if defined(__x86_64__)
const bool kHasAvx2 = __builtin_cpu_supports("avx2") != 0;

constexpr std::size_t kEight = 8;
constexpr std::size_t kSixteen = 16;

__attribute__((target("avx2"))) inline __m256 widened(const std::uint16_t* from) {
  const __m256i low = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  return _mm256_castsi256_ps(_mm256_slli_epi32(low, kUpperHalf));
}

/// As rounded(), in the lower halves of eight numbers.
__attribute__((target("avx2"))) inline __m256i rounded(__m256 value) {
  const __m256i bits = _mm256_castps_si256(value);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, kUpperHalf), _mm256_set1_epi32(1));
  const __m256i up = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
  const __m256i no_number = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
  return _mm256_blendv_epi8(_mm256_srli_epi32(up, kUpperHalf), _mm256_set1_epi32(0x7fc0), no_number);
}

__attribute__((target("avx2"))) inline void store(std::uint16_t* to, __m256 first, __m256 second) {
  constexpr int kInOrder = 0xd8;  // packing is within 128 bits
  const __m256i packed = _mm256_packus_epi32(rounded(first), rounded(second));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_permute4x64_epi64(packed, kInOrder));
}

__attribute__((target("avx2"))) void sum_bf16_by_avx2(std::uint16_t* result, const std::uint16_t* a,
                                                      const std::uint16_t* b, std::size_t count) {
  const std::size_t whole = count - count % kSixteen;
  for (std::size_t i = 0; i < whole; i += kSixteen)
    store(result + i, _mm256_add_ps(widened(a + i), widened(b + i)),
          _mm256_add_ps(widened(a + i + kEight), widened(b + i + kEight)));
  sum_bf16_portable(result + whole, a + whole, b + whole, count - whole);
}

__attribute__((target("avx2"))) void to_bf16_by_avx2(std::uint16_t* to, const float* from, float scale,
                                                     std::size_t count) {
  const std::size_t whole = count - count % kSixteen;
  const __m256 factor = _mm256_set1_ps(scale);
  for (std::size_t i = 0; i < whole; i += kSixteen)
    store(to + i, _mm256_mul_ps(factor, _mm256_loadu_ps(from + i)),
          _mm256_mul_ps(factor, _mm256_loadu_ps(from + i + kEight)));
  to_bf16_portable(to + whole, from + whole, scale, count - whole);
}

__attribute__((target("avx2"))) void from_bf16_by_avx2(float* to, const std::uint16_t* from, float scale,
                                                       std::size_t count) {
  const std::size_t whole = count - count % kEight;
  const __m256 factor = _mm256_set1_ps(scale);
  for (std::size_t i = 0; i < whole; i += kEight)
    _mm256_storeu_ps(to + i, _mm256_mul_ps(factor, widened(from + i)));
  from_bf16_portable(to + whole, from + whole, scale, count - whole);
}

/// F16C's bit of cpuid, since clang 14's __builtin_cpu_supports does not know it; AVX also asks for the
/// operating system's support.
const bool kHasF16c = [] {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  return __builtin_cpu_supports("avx") != 0 && __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 &&
         (ecx & bit_F16C) != 0;
}();

constexpr std::size_t kWidth = 8;  // halves that F16C converts at once

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
  sum_portable(result + whole, a + whole, b + whole, count - whole);
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
#else
constexpr bool kHasAvx2 = false;
constexpr auto sum_bf16_by_avx2 = sum_bf16_portable;
constexpr auto to_bf16_by_avx2 = to_bf16_portable;
constexpr auto from_bf16_by_avx2 = from_bf16_portable;
constexpr bool kHasF16c = false;
constexpr auto sum_by_f16c = sum_portable;
constexpr auto to_half_by_f16c = to_half_portable;
constexpr auto to_float_by_f16c = to_float_portable;
#endif

}  // namespace

void copy_scaled(const Array& to, const Array& from, double scale) {
  assert(to.count == from.count);
  const auto factor = static_cast<float>(scale);
  assert(to.type == DataType::kFloat32 || from.type == DataType::kFloat32);
  if (to.type == DataType::kFloat16) return float_to_float16(to.data, floats(from), factor, to.count);
  if (to.type == DataType::kBFloat16) return float_to_bfloat16(to.data, floats(from), factor, to.count);
  if (from.type == DataType::kFloat16) return float16_to_float(floats(to), from.data, factor, to.count);
  if (from.type == DataType::kBFloat16) return bfloat16_to_float(floats(to), from.data, factor, to.count);
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

void sum_float16(void* result, const void* a, const void* b, std::size_t count) {
  (kHasF16c ? sum_by_f16c : sum_portable)(static_cast<gloo::float16*>(result),
                                          static_cast<const gloo::float16*>(a),
                                          static_cast<const gloo::float16*>(b), count);
}

void sum_float16_portable(void* result, const void* a, const void* b, std::size_t count) {
  sum_portable(static_cast<gloo::float16*>(result), static_cast<const gloo::float16*>(a),
               static_cast<const gloo::float16*>(b), count);
}

void sum_bfloat16(void* result, const void* a, const void* b, std::size_t count) {
  (kHasAvx2 ? sum_bf16_by_avx2 : sum_bf16_portable)(static_cast<std::uint16_t*>(result),
                                                    static_cast<const std::uint16_t*>(a),
                                                    static_cast<const std::uint16_t*>(b), count);
}

void sum_bfloat16_portable(void* result, const void* a, const void* b, std::size_t count) {
  sum_bf16_portable(static_cast<std::uint16_t*>(result), static_cast<const std::uint16_t*>(a),
                    static_cast<const std::uint16_t*>(b), count);
}

void float_to_bfloat16(void* to, const float* from, float scale, std::size_t count) {
  (kHasAvx2 ? to_bf16_by_avx2 : to_bf16_portable)(static_cast<std::uint16_t*>(to), from, scale, count);
}

void bfloat16_to_float(float* to, const void* from, float scale, std::size_t count) {
  (kHasAvx2 ? from_bf16_by_avx2 : from_bf16_portable)(to, static_cast<const std::uint16_t*>(from), scale,
                                                      count);
}

void float_to_float16(void* to, const float* from, float scale, std::size_t count) {
  (kHasF16c ? to_half_by_f16c : to_half_portable)(static_cast<gloo::float16*>(to), from, scale, count);
}

void float16_to_float(float* to, const void* from, float scale, std::size_t count) {
  (kHasF16c ? to_float_by_f16c : to_float_portable)(to, static_cast<const gloo::float16*>(from), scale,
                                                    count);
}

}  // namespace stepcast
