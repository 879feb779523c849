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

/// IEEE 754 half precision, converted by gloo.
struct Half {
  static float widened(std::uint16_t bits) {
    gloo::float16 half;
    half.x = bits;
    return gloo::cpu_half2float(half);
  }
  static std::uint16_t rounded(float value) { return gloo::cpu_float2half_rn(value).x; }
};

constexpr unsigned kUpperHalf = 16;

/// Upper half of a float32.
struct Bf16 {
  static float widened(std::uint16_t bits) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << kUpperHalf);
  }
  static std::uint16_t rounded(float value) {
    constexpr std::uint16_t kNan = 0x7fc0;
    constexpr std::uint32_t kBelowHalf = 0x7fff;
    if (std::isnan(value)) return kNan;
    const auto bits = std::bit_cast<std::uint32_t>(value);
    return static_cast<std::uint16_t>((bits + kBelowHalf + (bits >> kUpperHalf & 1U)) >> kUpperHalf);
  }
};

#if defined(__x86_64__)
#define STEPCAST_EIGHT __attribute__((target("avx2,f16c")))

/// True if the CPU has AVX2 and F16C. clang 14's __builtin_cpu_supports does not know F16C.
const bool kHasEight = [] {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __builtin_cpu_supports("avx2") != 0 && __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 &&
         (ecx & bit_F16C) != 0;
}();

template <class Format>
struct EightAtOnce;

template <>
struct EightAtOnce<Half> {
  STEPCAST_EIGHT static __m256 load(const std::uint16_t* from) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
  STEPCAST_EIGHT static void store(std::uint16_t* to, __m256 value) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                     _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
};

template <>
struct EightAtOnce<Bf16> {
  STEPCAST_EIGHT static __m256 load(const std::uint16_t* from) {
    const __m256i low = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(low, kUpperHalf));
  }
  STEPCAST_EIGHT static void store(std::uint16_t* to, __m256 value) {
    const __m256i bits = _mm256_castps_si256(value);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, kUpperHalf), _mm256_set1_epi32(1));
    const __m256i up = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    const __m256i no_number = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
    const __m256i rounded =
        _mm256_blendv_epi8(_mm256_srli_epi32(up, kUpperHalf), _mm256_set1_epi32(0x7fc0), no_number);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                     _mm_packus_epi32(_mm256_castsi256_si128(rounded), _mm256_extracti128_si256(rounded, 1)));
  }
};

/// Loops over numbers of 2 bytes, eight at once: over `count`, a multiple of 8.
template <class Format>
struct InEights {
  using Lanes = EightAtOnce<Format>;
  STEPCAST_EIGHT static void sum(std::uint16_t* to, const std::uint16_t* a, const std::uint16_t* b,
                                 std::size_t count) {
    for (std::size_t i = 0; i < count; i += 8)
      Lanes::store(to + i, _mm256_add_ps(Lanes::load(a + i), Lanes::load(b + i)));
  }
  STEPCAST_EIGHT static void round(std::uint16_t* to, const float* from, float scale, std::size_t count) {
    const __m256 factor = _mm256_set1_ps(scale);
    for (std::size_t i = 0; i < count; i += 8)
      Lanes::store(to + i, _mm256_mul_ps(_mm256_loadu_ps(from + i), factor));
  }
  STEPCAST_EIGHT static void widen(float* to, const std::uint16_t* from, float scale, std::size_t count) {
    const __m256 factor = _mm256_set1_ps(scale);
    for (std::size_t i = 0; i < count; i += 8)
      _mm256_storeu_ps(to + i, _mm256_mul_ps(Lanes::load(from + i), factor));
  }
};
#else
constexpr bool kHasEight = false;
struct NoEights {
  static void sum(std::uint16_t*, const std::uint16_t*, const std::uint16_t*, std::size_t) {}
  static void round(std::uint16_t*, const float*, float, std::size_t) {}
  static void widen(float*, const std::uint16_t*, float, std::size_t) {}
};
template <class Format>
using InEights = NoEights;
#endif

/// Loops over numbers of 2 bytes: eight at once, the rest one by one.
template <class Format>
struct Loops {
  static std::size_t eights(std::size_t count) { return kHasEight ? count - count % 8 : 0; }
  static void sum(void* result, const void* a, const void* b, std::size_t count) {
    auto* const to = static_cast<std::uint16_t*>(result);
    const auto *left = static_cast<const std::uint16_t*>(a), *right = static_cast<const std::uint16_t*>(b);
    const std::size_t whole = eights(count);
    if (whole > 0) InEights<Format>::sum(to, left, right, whole);
    for (std::size_t i = whole; i < count; ++i)
      to[i] = Format::rounded(Format::widened(left[i]) + Format::widened(right[i]));
  }
  static void round(void* result, const float* from, float scale, std::size_t count) {
    auto* const to = static_cast<std::uint16_t*>(result);
    const std::size_t whole = eights(count);
    if (whole > 0) InEights<Format>::round(to, from, scale, whole);
    for (std::size_t i = whole; i < count; ++i) to[i] = Format::rounded(scale * from[i]);
  }
  static void widen(float* to, const void* halves, float scale, std::size_t count) {
    const auto* const from = static_cast<const std::uint16_t*>(halves);
    const std::size_t whole = eights(count);
    if (whole > 0) InEights<Format>::widen(to, from, scale, whole);
    for (std::size_t i = whole; i < count; ++i) to[i] = scale * Format::widened(from[i]);
  }
};

template <class Format>
constexpr TwoByteLoops kLoops{&Loops<Format>::sum, &Loops<Format>::round, &Loops<Format>::widen};

}  // namespace

const TwoByteLoops* two_byte_loops(DataType type) {
  if (type == DataType::kFloat16) return &kLoops<Half>;
  return type == DataType::kBFloat16 ? &kLoops<Bf16> : nullptr;
}

void copy_scaled(const Array& to, const Array& from, double scale) {
  assert(to.count == from.count);
  const auto factor = static_cast<float>(scale);
  assert(to.type == DataType::kFloat32 || from.type == DataType::kFloat32);
  if (const auto* loops = two_byte_loops(to.type))
    return loops->round(to.data, floats(from), factor, to.count);
  if (const auto* loops = two_byte_loops(from.type))
    return loops->widen(floats(to), from.data, factor, to.count);
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
