#include <sched.h>

#include <catch2/catch.hpp>
#include <future>

#include "core/error.hpp"
#include "runner/launch/binding.hpp"

namespace stepcast::scheduling_test {

TEST_CASE("threads inherit the scheduling of their rank") {
  const sched_param no_priority{};
  CHECK(set_scheduling("batch") == "batch");
  CHECK(std::async(std::launch::async, [] { return ::sched_getscheduler(0); }).get() == SCHED_BATCH);
  REQUIRE(::sched_setscheduler(0, SCHED_OTHER, &no_priority) == 0);
  CHECK(set_scheduling("normal") == "normal");
  CHECK(::sched_getscheduler(0) == SCHED_OTHER);
}

TEST_CASE("an unknown scheduling is an error that lists the valid ones") {
  CHECK_THROWS_WITH(set_scheduling("bach"), Catch::Contains("did you mean 'batch'?"));
}

}  // namespace stepcast::scheduling_test
