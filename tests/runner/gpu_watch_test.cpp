#include "runner/measure/gpu_watch.hpp"

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <thread>

namespace stepcast::gpu_watch_test {

TEST_CASE("a GPU's clocks are read from the beginning, and reasons of throttling are named") {
  std::atomic<int> reads = 0;
  GpuWatch watch("a GPU", {"580.1", 1980.0, [&reads]() -> std::optional<GpuReading> {
                             ++reads;
                             const bool first = reads == 1;
                             return GpuReading{first ? 1980.0 : 1200.0, 2619.0, first ? 300.0 : 699.0,
                                               60.0 + reads, first ? 0x1ULL : 0x44ULL};
                           }});
  while (reads < 2) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  const GpuState state = watch.report();
  CHECK(state.name == "a GPU");
  CHECK(state.driver == "580.1");
  CHECK(state.readings == reads);
  CHECK(state.sm_clock_mhz <= 1980.0);
  CHECK(state.lowest_clock_mhz == 1200.0);
  CHECK(state.highest_clock_mhz == 1980.0);
  CHECK(state.power_w == 699.0);
  CHECK(state.temperature_c == 60.0 + reads);
  CHECK(state.throttled == "software power cap, hardware thermal slowdown");
  CHECK(doubts(state) == std::vector<std::string>{"the GPU was slowed down: " + state.throttled});
}

TEST_CASE("a GPU without readings is doubtful; no GPU is not") {
  GpuWatch watch("a GPU", {});
  const GpuState state = watch.report();
  CHECK(state.readings == 0);
  REQUIRE(doubts(state).size() == 1);
  CHECK_THAT(doubts(state).front(), Catch::Contains("not known"));
  CHECK(doubts(GpuState{}).empty());
  CHECK(throttle_text(0x1 | 0x2).empty());  // idle, and clocks that applications set
}

}  // namespace stepcast::gpu_watch_test
