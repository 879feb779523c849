#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "runner/backend/array_copies.hpp"
#include "tests/runner/as_ranks.hpp"

namespace stepcast::float16_test {

namespace {

using Half = std::uint16_t;
using Sum = void (*)(void*, const void*, const void*, std::size_t);

/// Numbers of 16 bits: a sign, an exponent, and the rest. The bits of positive ones are in their order.
struct Format {
  std::string name;
  DataType type;
  int mantissa_bits;
  Sum sum;
  void (*from_float)(void*, const float*, float, std::size_t);
  void (*to_float)(float*, const void*, float, std::size_t);

  [[nodiscard]] int exponents() const { return 1 << (15 - mantissa_bits); }
  [[nodiscard]] int bias() const { return exponents() / 2 - 1; }
  [[nodiscard]] Half infinity() const { return static_cast<Half>((exponents() - 1) << mantissa_bits); }
  [[nodiscard]] bool is_nan(Half half) const { return (half & 0x7fff) > infinity(); }
  [[nodiscard]] double smallest() const { return std::ldexp(1.0, 1 - bias() - mantissa_bits); }
};

const std::vector<Format>& formats() {
  const auto format = [](const char* name, DataType type, int mantissa_bits) {
    const TwoByteLoops& loops = *two_byte_loops(type);
    return Format{name, type, mantissa_bits, loops.sum, loops.round, loops.widen};
  };
  static const std::vector<Format> kFormats{format("float16", DataType::kFloat16, 10),
                                            format("bfloat16", DataType::kBFloat16, 7)};
  return kFormats;
}

double to_double(const Format& format, Half half) {
  const int exponent = half >> format.mantissa_bits & (format.exponents() - 1);
  const int hidden = 1 << format.mantissa_bits;
  const int mantissa = half & (hidden - 1);
  double value = std::ldexp(exponent == 0 ? mantissa : mantissa + hidden,
                            std::max(exponent, 1) - format.bias() - format.mantissa_bits);
  if (exponent == format.exponents() - 1)
    value =
        mantissa == 0 ? std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  return (half & 0x8000) != 0 ? -value : value;
}

/// Nearest, ties to even.
Half to_half(const Format& format, double value) {
  const Half sign = std::signbit(value) ? 0x8000 : 0;
  const double size = std::abs(value);
  const double beyond = std::ldexp(1.0, format.bias() + 1);
  if (size >= beyond - std::ldexp(1.0, format.bias() - format.mantissa_bits - 1))
    return sign | format.infinity();
  Half low = 0;
  for (int bit = 14; bit >= 0; --bit) {
    const Half candidate = static_cast<Half>(low | 1 << bit);
    if (candidate < format.infinity() && to_double(format, candidate) <= size) low = candidate;
  }
  const Half after = low + 1;
  const double next = after == format.infinity() ? beyond : to_double(format, after);
  const double below = size - to_double(format, low);
  const double above = next - size;
  const bool up = above < below || (above == below && low % 2 == 1);
  return static_cast<Half>(sign | (low + (up ? 1 : 0)));
}

std::vector<Half> random_halves(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<Half> halves(count);
  for (Half& half : halves) half = static_cast<Half>(random());
  return halves;
}

/// \param step elements per call; fewer than eight are summed one by one, on any CPU
void check_sums(const Format& format, std::size_t step, const std::vector<Half>& a,
                const std::vector<Half>& b) {
  std::vector<Half> result(a.size());
  for (std::size_t i = 0; i < a.size(); i += step)
    format.sum(result.data() + i, a.data() + i, b.data() + i, std::min(step, a.size() - i));
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double exact = to_double(format, a[i]) + to_double(format, b[i]);
    wrong += std::isnan(exact) ? !format.is_nan(result[i]) : result[i] != to_half(format, exact);
  }
  CHECK(wrong == 0);
}

double value_at(int rank, std::size_t i) {
  return std::sin(0.37 * static_cast<double>(i)) * (1.0 + rank / 3.0);
}

Array array(const Format& format, std::vector<Half>& halves) {
  return {halves.data(), halves.size(), format.type};
}

std::vector<Half> values_of(const Format& format, int rank, std::size_t count) {
  std::vector<Half> halves(count);
  for (std::size_t i = 0; i < count; ++i) halves[i] = to_half(format, value_at(rank, i));
  return halves;
}

/// Each of n - 1 additions rounds by half a unit in the last place of a partial sum: at most 2^-11 of the sum
/// of magnitudes in float16, 2^-8 in bfloat16.
void expect_sums(const Format& format, const std::vector<Half>& sums, std::size_t first, int ranks,
                 const std::string& what) {
  for (std::size_t i = 0; i < sums.size(); ++i) {
    double exact = 0.0;
    double magnitude = 0.0;
    for (int rank = 0; rank < ranks; ++rank) {
      const double value = to_double(format, to_half(format, value_at(rank, first + i)));
      exact += value;
      magnitude += std::abs(value);
    }
    const double bound =
        (ranks - 1) * (std::ldexp(magnitude, -format.mantissa_bits - 1) + 0.5 * format.smallest());
    expect(std::abs(to_double(format, sums[i]) - exact) <= bound, what + " is off by more than its rounding");
  }
}

}  // namespace

TEST_CASE("sums of two bytes are the exact sums rounded once, whichever code runs", "[backend]") {
  const Format format = GENERATE(from_range(formats()));
  CAPTURE(format.name);
  const Half infinity = format.infinity();
  const auto one = static_cast<Half>(format.bias() << format.mantissa_bits);
  const auto hidden = static_cast<Half>(1 << format.mantissa_bits);
  const std::vector<Half> edges{0x0000,
                                0x8000,
                                0x0001,
                                0x8001,
                                static_cast<Half>(hidden - 1),
                                hidden,
                                static_cast<Half>(infinity - 1),
                                static_cast<Half>(0x8000 | (infinity - 1)),
                                infinity,
                                static_cast<Half>(0x8000 | infinity),
                                one,
                                static_cast<Half>(one + 1),
                                0x1000};
  std::vector<Half> left;
  std::vector<Half> right;
  for (const Half a : edges)
    for (const Half b : edges) {
      left.push_back(a);
      right.push_back(b);
    }
  for (const std::size_t step : {std::size_t{1}, std::size_t{100'000}}) {
    check_sums(format, step, random_halves(100'000, 1), random_halves(100'000, 2));
    check_sums(format, step, left, right);
    for (std::size_t count = 0; count < 40; ++count)
      check_sums(format, step, random_halves(count, 3), random_halves(count, 4));
  }
}

TEST_CASE("one is 0x3c00 as float16 and 0x3f80 as bfloat16; 256 + 1 is 256 in bfloat16, which has 8 digits",
          "[backend]") {
  CHECK(to_half(formats()[0], 1.0) == 0x3c00);
  CHECK(to_double(formats()[0], 0x3555) == Approx(1.0 / 3.0).epsilon(1e-3));
  CHECK(to_half(formats()[1], 1.0) == 0x3f80);
  CHECK(to_double(formats()[1], 0x3eab) == Approx(1.0 / 3.0).epsilon(1e-2));
  const Half large = 0x4380, one = 0x3f80, three = 0x4040;
  Half sum = 0;
  formats()[1].sum(&sum, &large, &one, 1);
  CHECK(to_double(formats()[1], sum) == 256.0);
  formats()[1].sum(&sum, &large, &three, 1);  // 259 is half way between 258 and 260, whose mantissa is even
  CHECK(to_double(formats()[1], sum) == 260.0);
}

TEST_CASE("floats are rounded to the nearest of two bytes, which are widened exactly, while they are scaled",
          "[backend]") {
  const Format format = GENERATE(from_range(formats()));
  CAPTURE(format.name);
  const std::vector<Half> halves = random_halves(1003, 5);
  std::vector<float> floats(halves.size());
  format.to_float(floats.data(), halves.data(), 0.5F, halves.size());
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < halves.size(); ++i)
    wrong += format.is_nan(halves[i]) ? !std::isnan(floats[i])
                                      : floats[i] != static_cast<float>(0.5 * to_double(format, halves[i]));
  CHECK(wrong == 0);

  for (std::size_t i = 0; i < floats.size(); ++i) floats[i] = static_cast<float>(value_at(1, i) * 1000.0);
  std::vector<Half> rounded(floats.size());
  format.from_float(rounded.data(), floats.data(), 0.25F, floats.size());
  for (std::size_t i = 0; i < floats.size(); ++i) wrong += rounded[i] != to_half(format, 0.25 * floats[i]);
  CHECK(wrong == 0);
}

TEST_CASE("all_reduce and reduce_scatter of two bytes agree with float64 sums within their rounding",
          "[backend]") {
  const Format format = GENERATE(from_range(formats()));
  const int world_size = GENERATE(1, 2, 3, 4);
  CAPTURE(format.name, world_size);
  REQUIRE_NOTHROW(as_ranks(world_size, [&format](Backend& backend) {
    const int ranks = backend.world_size();
    const auto parts = static_cast<std::size_t>(ranks);
    for (const std::size_t count : {1U, 7U, 1000U, 300'001U}) {
      std::vector<Half> own = values_of(format, backend.rank(), count);
      backend.all_reduce(array(format, own))->wait();
      expect_sums(format, own, 0, ranks, "all_reduce");

      std::vector<Half> whole = values_of(format, backend.rank(), count * parts);
      std::vector<Half> part(count);
      backend.reduce_scatter(array(format, whole), array(format, part))->wait();
      expect_sums(format, part, count * static_cast<std::size_t>(backend.rank()), ranks, "reduce_scatter");
    }
  }));
}

TEST_CASE("a reduce_scatter of bfloat16 to float32 adds, and sends, float32", "[backend]") {
  const int world_size = GENERATE(1, 2, 3);
  CAPTURE(world_size);
  REQUIRE_NOTHROW(as_ranks(world_size, [](Backend& backend) {
    const Format& format = formats()[1];
    const int ranks = backend.world_size();
    constexpr std::size_t kCount = 1001;
    std::vector<Half> whole = values_of(format, backend.rank(), kCount * static_cast<std::size_t>(ranks));
    std::vector<float> part(kCount);
    const std::uint64_t before = backend.bytes_sent();
    backend.reduce_scatter(array(format, whole), {part.data(), kCount, DataType::kFloat32})->wait();
    expect(backend.bytes_sent() - before == static_cast<std::uint64_t>(ranks - 1) * kCount * sizeof(float),
           "sent as float32");
    for (std::size_t i = 0; i < kCount; ++i) {
      double exact = 0.0;
      const std::size_t at = kCount * static_cast<std::size_t>(backend.rank()) + i;
      for (int rank = 0; rank < ranks; ++rank)
        exact += to_double(format, to_half(format, value_at(rank, at)));
      expect(std::abs(part[i] - exact) <= std::ldexp(8.0, -24), "added as float32");
    }
  }));
}

TEST_CASE("the largest of bfloat16 are found among negative ones too", "[backend]") {
  as_ranks(3, [](Backend& backend) {
    const Format& format = formats()[1];
    std::vector<Half> own{to_half(format, -1.0 - backend.rank()), to_half(format, backend.rank() - 1.0)};
    backend.all_reduce_maximum(array(format, own))->wait();
    expect(to_double(format, own[0]) == -1.0 && to_double(format, own[1]) == 1.0, "the largest");
  });
}

TEST_CASE("halves are moved unchanged by the collectives that do not add", "[backend]") {
  as_ranks(3, [](Backend& backend) {
    const Format& format = formats()[0];
    constexpr std::size_t kCount = 1001;
    std::vector<Half> own = values_of(format, backend.rank(), kCount);
    std::vector<Half> joined;
    for (int rank = 0; rank < 3; ++rank)
      for (const Half half : values_of(format, rank, kCount)) joined.push_back(half);
    std::vector<Half> all(3 * kCount);
    backend.all_gather(array(format, own), array(format, all))->wait();
    expect(all == joined, "all_gather");
    std::fill(all.begin(), all.end(), 0);
    const Array whole = array(format, all);
    Half* const place = all.data() + static_cast<std::size_t>(backend.rank()) * kCount;
    std::copy(own.begin(), own.end(), place);
    backend.all_gather({place, kCount, format.type}, whole)->wait();
    expect(all == joined, "all_gather in place");
    std::fill(all.begin(), all.end(), 0);
    backend.gather(array(format, own), whole, 1)->wait();
    expect(backend.rank() != 1 || all == joined, "gather");
    std::vector<Array> pieces;
    for (std::size_t rank = 0; backend.rank() == 1 && rank < 3; ++rank)
      pieces.push_back({joined.data() + rank * kCount, kCount, format.type});
    std::vector<Half> piece(kCount);
    backend.scatter(pieces, array(format, piece), 1)->wait();
    expect(piece == own, "scatter");
    backend.broadcast(array(format, own), 2)->wait();
    expect(own == values_of(format, 2, kCount), "broadcast");
  });
}

}  // namespace stepcast::float16_test
