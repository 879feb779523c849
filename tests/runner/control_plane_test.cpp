#include <catch2/catch.hpp>
#include <chrono>
#include <cmath>
#include <thread>

#include "tests/runner/as_ranks.hpp"

namespace stepcast::control_plane_test {
using namespace std::chrono_literals;

namespace {

/// Runs `body` as ranks that have a control plane and no backend.
void as_controls(int world_size, const std::function<void(ControlPlane&, int rank)>& body) {
  const auto store = make_memory_store(10s);
  std::vector<std::string> problems(static_cast<std::size_t>(world_size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank)
    threads.emplace_back([&, rank] {
      try {
        ControlPlane control(store, rank, world_size, 10s);
        body(control, rank);
      } catch (const std::exception& error) {
        problems[static_cast<std::size_t>(rank)] = error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::string& problem : problems) CHECK(problem.empty());
}

}  // namespace

TEST_CASE("texts of any length reach every rank, or rank 0 alone, in the order of the ranks", "[control]") {
  const std::vector<std::string> all{"", std::string(100'000, 'b'), std::string("c\0\n", 3)};
  as_controls(3, [&](ControlPlane& control, int rank) {
    const std::string own = all[static_cast<std::size_t>(rank)];
    expect(control.all_gather("texts", own) == all, "every rank has all");
    expect(control.gather("texts", own) == (rank == 0 ? all : std::vector<std::string>{}), "rank 0");
  });
}

TEST_CASE("numbers arrive to the last bit and in any count", "[control]") {
  as_controls(2, [](ControlPlane& control, int rank) {
    const std::vector<double> mine =
        rank == 0 ? std::vector<double>{}
                  : std::vector<double>{0.1, -1.0 / 3.0, 1e-300, std::nextafter(7.0, 8.0)};
    const auto all = control.all_gather_numbers("numbers", mine);
    expect(all[0].empty() && all[static_cast<std::size_t>(rank)] == mine, "equal numbers");
    expect(all[1].size() == 4 && all[1][3] == std::nextafter(7.0, 8.0), "the other rank's numbers");
  });
}

TEST_CASE("a rank that does not take part is named after the timeout, with the call", "[control]") {
  const auto store = make_memory_store(200ms);
  ControlPlane present(store, 1, 3, 200ms);
  CHECK_THROWS_WITH(present.all_gather("hosts", "b"),
                    Catch::Contains("rank 1: hosts: of 3 ranks") && Catch::Contains("200 ms: 0, 2"));
}

TEST_CASE("a single rank receives its own texts at once", "[control]") {
  ControlPlane alone(make_memory_store(0ms), 0, 1, 0ms);
  CHECK(alone.all_gather("texts", "a") == std::vector<std::string>{"a"});
  CHECK(alone.gather("texts", "b") == std::vector<std::string>{"b"});
}

}  // namespace stepcast::control_plane_test
