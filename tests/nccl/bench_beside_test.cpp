#include "runner/measure/bench_beside.hpp"

#include <catch2/catch.hpp>
#include <chrono>
#include <mutex>
#include <string>
#include <thread>

#include "core/error.hpp"
#include "runner/execute/device_library.hpp"
#include "tests/nccl/stand_in.hpp"
#include "tests/runner/as_ranks.hpp"

namespace stepcast::bench_beside_test {
namespace {

using namespace std::chrono_literals;

BenchSettings settings(int rounds) {
  BenchSettings settings;
  settings.collectives = {"all_reduce"};
  settings.sizes = {4096};
  settings.rounds = rounds;
  return settings;
}

/// Of two ranks; collectives take 2 ms. \param kernel what a computation does in the default stream
std::vector<BesideRow> measure(const std::function<void()>& kernel) {
  stand_in::set_devices(2);
  stand_in::slow_collectives(2ms);
  std::vector<BesideRow> rows;
  as_sessions(2,
              [&](RankSession& session) {
                const auto queue = open_device("cuda", session.ranks.local_rank);
                BenchSettings own = settings(3);
                own.device = queue.get();
                const auto result =
                    bench_beside(session, own, {"a kernel", [&] { stand_in::launch(nullptr, kernel); }},
                                 [](const std::string&) {});
                if (session.ranks.rank == 0) rows = result;
              },
              {.backend = "nccl", .timeout = 20s});
  stand_in::slow_collectives(0ms);
  stand_in::set_devices(8);
  return rows;
}

}  // namespace

TEST_CASE("a slowdown is that of the time in which both ran, from recorded times") {
  const Interval whole{0.0, 30.0};
  // 20 alone; beside something from 0 to 20, then 10 alone: 10 of its 20 took 20.
  CHECK(*slowdown_beside(20.0, whole, {0.0, 20.0}) == Approx(2.0));
  // The other one ran throughout.
  CHECK(*slowdown_beside(20.0, whole, {-5.0, 40.0}) == Approx(1.5));
  // Its beginning was alone as well.
  CHECK(*slowdown_beside(25.0, whole, {5.0, 25.0}) == Approx(20.0 / 15.0));
  CHECK(*slowdown_beside(30.0, whole, {5.0, 25.0}) == Approx(1.0));
  // One after the other, or nearly.
  CHECK_FALSE(slowdown_beside(20.0, whole, {30.0, 40.0}));
  CHECK_FALSE(slowdown_beside(20.0, whole, {25.0, 40.0}));
  // Slower beside nothing than the whole takes alone.
  CHECK_FALSE(slowdown_beside(8.0, whole, {10.0, 30.0}));
}

// Hidden, because a busy machine runs them one after the other.
TEST_CASE("computing and a collective run concurrently, with a slowdown of each per round",
          "[nccl][.machine]") {
  const std::vector<BesideRow> rows = measure([] { std::this_thread::sleep_for(2ms); });
  REQUIRE(rows.size() == 1);
  CHECK(rows[0].collective == "all_reduce");
  CHECK(rows[0].message_bytes == 4096.0);
  CHECK(rows[0].compute == "a kernel");
  REQUIRE_FALSE(rows[0].compute_slowdown.empty());
  CHECK(rows[0].compute_slowdown.size() == rows[0].collective_slowdown.size());
  CHECK(rows[0].compute_alone_s.front() > 0.0);
  CHECK(rows[0].collective_alone_s.front() > 0.0);
}

// Hidden, because it compares times of this machine.
TEST_CASE("a kernel that takes three times as long while a collective runs is slowed down more",
          "[.machine]") {
  const std::vector<BesideRow> rows = measure([] {
    std::this_thread::sleep_for(2ms);
    if (stand_in::running_collectives() > 0) std::this_thread::sleep_for(4ms);
  });
  REQUIRE(rows.size() == 1);
  CHECK(median(rows[0].compute_slowdown) > 1.3 * median(rows[0].collective_slowdown));
}

TEST_CASE("collectives that cannot run concurrently with computing are errors", "[nccl]") {
  stand_in::set_devices(2);
  CHECK_THROWS_WITH(as_sessions(2,
                                [&](RankSession& session) {
                                  const auto queue = open_device("cuda", session.ranks.local_rank);
                                  BenchSettings own = settings(1);
                                  own.collectives = {"send_recv"};
                                  own.device = queue.get();
                                  bench_beside(session, own, {"nothing", [] {}}, [](const std::string&) {});
                                },
                                {.backend = "nccl", .ends_together = false}),
                    Catch::Contains("send_recv is timed on the host"));
  stand_in::set_devices(8);
}

}  // namespace stepcast::bench_beside_test
