#include <catch2/catch.hpp>
#include <vector>

#include "tests/runner/backend_conformance.hpp"

namespace stepcast::backend_test {

TEST_CASE("every collective of gloo gives the exact result at 1, 2, 3 and 4 ranks", "[backend]") {
  const int world_size = GENERATE(1, 2, 3, 4);
  CAPTURE(world_size);
  REQUIRE_NOTHROW(as_ranks(world_size, check_all_collectives));
}

TEST_CASE("collectives issued one after the other overlap two at a time without mixing their data",
          "[backend]") {
  REQUIRE_NOTHROW(as_ranks(3, [](Backend& backend) {
    expect(backend.collectives_in_flight() == 2, "c10d runs two");
    check_calls_in_flight(backend);
  }));
}

TEST_CASE("messages between all pairs of ranks arrive in order, groups work concurrently", "[backend]") {
  REQUIRE_NOTHROW(as_ranks(4, [](Backend& backend) {
    check_messages(backend);
    check_groups(backend);
  }));
}

TEST_CASE("messages are matched by tag, also if received in another order", "[backend]") {
  REQUIRE_NOTHROW(as_ranks(2, [](Backend& backend) {
    const int peer = 1 - backend.rank();
    const Placed<float> first(backend, contributions<float>(backend.rank(), 5000));
    const Placed<float> second(backend, contributions<float>(backend.rank() + 2, 1));
    const Placed<float> first_in(backend, 5000U);
    const Placed<float> second_in(backend, 1U);
    const std::vector<WorkPtr> works{
        backend.recv(second_in.array(), peer, 8), backend.recv(first_in.array(), peer, 7),
        backend.send(first.array(), peer, 7), backend.send(second.array(), peer, 8)};
    for (const WorkPtr& work : works) work->wait();
    expect_equal(first_in.values(), contributions<float>(peer, 5000), "tag 7");
    expect_equal(second_in.values(), contributions<float>(peer + 2, 1), "tag 8");
  }));
}

TEST_CASE("a task handed to the communication thread runs there, and its error comes out of wait",
          "[backend]") {
  REQUIRE_NOTHROW(as_ranks(1, check_tasks));
}

}  // namespace stepcast::backend_test
