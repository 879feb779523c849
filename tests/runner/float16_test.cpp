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

constexpr Half kInfinity = 0x7c00;

bool is_nan(Half half) { return (half & 0x7fff) > kInfinity; }

double to_double(Half half) {
  const int exponent = half >> 10 & 0x1f;
  const int mantissa = half & 0x3ff;
  double value = std::ldexp(exponent == 0 ? mantissa : mantissa + 1024, std::max(exponent, 1) - 25);
  if (exponent == 0x1f)
    value =
        mantissa == 0 ? std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  return (half & 0x8000) != 0 ? -value : value;
}

/// Nearest half, ties to even: positive halves are ordered as their bits are.
Half to_half(double value) {
  const Half sign = std::signbit(value) ? 0x8000 : 0;
  const double size = std::abs(value);
  if (size >= 65520.0) return sign | kInfinity;
  Half low = 0;
  for (int bit = 14; bit >= 0; --bit) {
    const Half candidate = static_cast<Half>(low | 1 << bit);
    if (candidate < kInfinity && to_double(candidate) <= size) low = candidate;
  }
  const double next = low + 1 == kInfinity ? 65536.0 : to_double(static_cast<Half>(low + 1));
  const double below = size - to_double(low);
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

using Sum = void (*)(void*, const void*, const void*, std::size_t);

void check_sums(Sum sum, const std::vector<Half>& a, const std::vector<Half>& b) {
  std::vector<Half> result(a.size());
  sum(result.data(), a.data(), b.data(), a.size());
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double exact = to_double(a[i]) + to_double(b[i]);
    wrong += std::isnan(exact) ? !is_nan(result[i]) : result[i] != to_half(exact);
  }
  CHECK(wrong == 0);
}

double value_at(int rank, std::size_t i) {
  return std::sin(0.37 * static_cast<double>(i)) * (1.0 + rank / 3.0);
}

Array array(std::vector<Half>& halves) { return {halves.data(), halves.size(), DataType::kFloat16}; }

std::vector<Half> values_of(int rank, std::size_t count) {
  std::vector<Half> halves(count);
  for (std::size_t i = 0; i < count; ++i) halves[i] = to_half(value_at(rank, i));
  return halves;
}

/// Each of n - 1 additions rounds by half a unit in the last place of a partial sum, at most 2^-11 of the sum
/// of magnitudes.
void expect_sums(const std::vector<Half>& sums, std::size_t first, int ranks, const std::string& what) {
  for (std::size_t i = 0; i < sums.size(); ++i) {
    double exact = 0.0;
    double magnitude = 0.0;
    for (int rank = 0; rank < ranks; ++rank) {
      const double value = to_double(to_half(value_at(rank, first + i)));
      exact += value;
      magnitude += std::abs(value);
    }
    const double bound = (ranks - 1) * (magnitude * std::ldexp(1.0, -11) + std::ldexp(1.0, -25));
    expect(std::abs(to_double(sums[i]) - exact) <= bound, what + " is off by more than half precision");
  }
}

}  // namespace

TEST_CASE("sums of halves are the exact sums rounded once, whichever code runs", "[backend]") {
  const Sum sum = GENERATE(as<Sum>{}, &sum_float16, &sum_float16_portable);
  check_sums(sum, random_halves(100'000, 1), random_halves(100'000, 2));
  const std::vector<Half> edges{0x0000, 0x8000, 0x0001, 0x8001, 0x03ff, 0x0400, 0x7bff,
                                0xfbff, 0x7c00, 0xfc00, 0x3c00, 0x3c01, 0x1000};
  std::vector<Half> left;
  std::vector<Half> right;
  for (const Half a : edges)
    for (const Half b : edges) {
      left.push_back(a);
      right.push_back(b);
    }
  check_sums(sum, left, right);
  for (std::size_t count = 0; count < 20; ++count)
    check_sums(sum, random_halves(count, 3), random_halves(count, 4));
  CHECK(to_half(1.0) == 0x3c00);
  CHECK(to_double(0x3555) == Approx(1.0 / 3.0).epsilon(1e-3));
}

TEST_CASE("floats are rounded to the nearest half, and halves are widened exactly, while they are scaled",
          "[backend]") {
  const std::vector<Half> halves = random_halves(1003, 5);
  std::vector<float> floats(halves.size());
  float16_to_float(floats.data(), halves.data(), 0.5F, halves.size());
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < halves.size(); ++i)
    wrong += is_nan(halves[i]) ? !std::isnan(floats[i]) : floats[i] != 0.5 * to_double(halves[i]);
  CHECK(wrong == 0);

  for (std::size_t i = 0; i < floats.size(); ++i) floats[i] = static_cast<float>(value_at(1, i) * 1000.0);
  std::vector<Half> rounded(floats.size());
  float_to_float16(rounded.data(), floats.data(), 0.25F, floats.size());
  for (std::size_t i = 0; i < floats.size(); ++i) wrong += rounded[i] != to_half(0.25 * floats[i]);
  CHECK(wrong == 0);
}

TEST_CASE("all_reduce and reduce_scatter of halves agree with float64 sums within half precision",
          "[backend]") {
  const int world_size = GENERATE(1, 2, 3, 4);
  CAPTURE(world_size);
  REQUIRE_NOTHROW(as_ranks(world_size, [](Backend& backend) {
    const int ranks = backend.world_size();
    const auto parts = static_cast<std::size_t>(ranks);
    for (const std::size_t count : {1U, 7U, 1000U, 300'001U}) {
      std::vector<Half> own = values_of(backend.rank(), count);
      backend.all_reduce(array(own))->wait();
      expect_sums(own, 0, ranks, "all_reduce");

      std::vector<Half> whole = values_of(backend.rank(), count * parts);
      std::vector<Half> part(count);
      backend.reduce_scatter(array(whole), array(part))->wait();
      expect_sums(part, count * static_cast<std::size_t>(backend.rank()), ranks, "reduce_scatter");
    }
  }));
}

TEST_CASE("halves are moved unchanged by the collectives that do not add", "[backend]") {
  as_ranks(3, [](Backend& backend) {
    constexpr std::size_t kCount = 1001;
    std::vector<Half> own = values_of(backend.rank(), kCount);
    std::vector<Half> joined;
    for (int rank = 0; rank < 3; ++rank)
      for (const Half half : values_of(rank, kCount)) joined.push_back(half);
    std::vector<Half> all(3 * kCount);
    backend.all_gather(array(own), array(all))->wait();
    expect(all == joined, "all_gather");
    std::fill(all.begin(), all.end(), 0);
    backend.gather(array(own), array(all), 1)->wait();
    expect(backend.rank() != 1 || all == joined, "gather");
    std::vector<Array> pieces;
    for (std::size_t rank = 0; backend.rank() == 1 && rank < 3; ++rank)
      pieces.push_back({joined.data() + rank * kCount, kCount, DataType::kFloat16});
    std::vector<Half> piece(kCount);
    backend.scatter(pieces, array(piece), 1)->wait();
    expect(piece == own, "scatter");
    backend.broadcast(array(own), 2)->wait();
    expect(own == values_of(2, kCount), "broadcast");
  });
}

}  // namespace stepcast::float16_test
