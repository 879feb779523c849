#include "runner/measure/sampler.hpp"

#include <catch2/catch.hpp>

namespace stepcast::sampler_test {

TEST_CASE("if time is short the longest cases lose rounds first, and none goes below the fewest") {
  CHECK(rounds_within({1.0, 2.0, 8.0}, 9, 3, 99.0) == std::vector<int>{9, 9, 9});
  CHECK(rounds_within({1.0, 2.0, 8.0}, 9, 3, 60.0) == std::vector<int>{9, 9, 4});
  CHECK(rounds_within({1.0, 2.0, 8.0}, 9, 3, 45.0) == std::vector<int>{9, 6, 3});
  CHECK(rounds_within({1.0, 2.0, 8.0}, 9, 3, 0.0) == std::vector<int>{3, 3, 3});
  CHECK(rounds_within({}, 9, 3, 0.0).empty());
}

TEST_CASE("cases with the least total time are repeated first, within the turn and the budget") {
  using Cases = std::vector<std::size_t>;
  const std::vector<double> cost{0.1, 2.0, 0.1, 0.5}, spent{3.0, 1.0, 2.0, 9.0};
  CHECK(cases_to_repeat({0, 1, 2}, cost, spent, 2.15, 60.0) == Cases{1, 2});
  CHECK(cases_to_repeat({0, 2, 3}, cost, spent, 1.0, 60.0) == Cases{2, 0, 3});
  CHECK(cases_to_repeat({0, 1}, cost, spent, 1.0, 60.0) == Cases{1});  // longer than a turn, but alone
  CHECK(cases_to_repeat({1, 2}, cost, spent, 1.0, 1.5).empty());
  CHECK(cases_to_repeat({}, cost, spent, 1.0, 60.0).empty());
}

}  // namespace stepcast::sampler_test
