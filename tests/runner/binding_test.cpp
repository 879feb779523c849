#include "runner/launch/binding.hpp"

#include <catch2/catch.hpp>

#include "core/error.hpp"

namespace stepcast::binding_test {

TEST_CASE("ranks divide the cores evenly and never share one") {
  CHECK(cores_of_rank({0, 1}, 0, 2) == std::vector<int>{0});
  CHECK(cores_of_rank({0, 1}, 1, 2) == std::vector<int>{1});
  CHECK(cores_of_rank({4, 5, 6, 7, 9}, 1, 2) == std::vector<int>{6, 7});
  CHECK(cores_of_rank({0, 1}, 0, 1) == std::vector<int>{0, 1});
}

TEST_CASE("no rank is bound if there are more than cores, or nobody knows how many") {
  CHECK(cores_of_rank({0, 1}, 2, 3).empty());
  CHECK(cores_of_rank({0, 1}, 3, 1).empty());
  CHECK(cores_of_rank({0, 1}, 0, 0).empty());
}

TEST_CASE("an unknown binding is an error that lists the valid ones") {
  CHECK_THROWS_WITH(bind_rank("cores", RankContext{}), Catch::Contains("did you mean 'core'?"));
}

}  // namespace stepcast::binding_test
