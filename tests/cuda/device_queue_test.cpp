#include "runner/execute/device_queue.hpp"

#include <catch2/catch.hpp>
#include <chrono>
#include <thread>

#include "core/error.hpp"
#include "tests/nccl/stand_in.hpp"

namespace stepcast::device_queue_test {

namespace {

using namespace std::chrono_literals;
using Clock = DeviceQueue::Clock;

/// A kernel of the default stream.
void compute(std::chrono::milliseconds time) {
  stand_in::launch(nullptr, [time] { std::this_thread::sleep_for(time); });
}

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

TEST_CASE("a host that runs ahead is told apart from its device") {
  stand_in::set_devices(1);
  const auto device = open_device("cuda");
  CHECK(device->device() == "a GPU of the stand-in");
  CHECK(device->bus() == "0000:01:00.0");
  StepMarks marks(device.get());
  for (int step = 0; step < 2; ++step) {  // events are used again
    marks.restart();
    const std::size_t start = marks.mark();
    compute(30ms);
    const std::size_t first = marks.mark();
    compute(60ms);
    const std::size_t second = marks.mark();
    marks.settle();
    CHECK(second == 2);
    CHECK(marks.issued_s(start, second) < 0.025);
    CHECK(marks.done_s(start, first) == Approx(0.03).margin(0.02));
    CHECK(marks.done_s(first, second) == Approx(0.06).margin(0.02));
    CHECK(marks.done_s(first, second) > marks.done_s(start, first));
    const double late = std::chrono::duration<double>(Clock::now() - marks.done(second)).count();
    CHECK(late >= -1e-3);
    CHECK(late < 0.05);
  }
}

TEST_CASE("a device that is held back begins when all is issued, and waits for nobody in between") {
  stand_in::set_devices(1);
  const auto device = open_device("cuda");
  StepMarks marks(device.get());
  marks.restart();
  device->drain();
  device->hold(10s);
  const std::size_t from = marks.mark();
  for (int i = 0; i < 4; ++i) {
    compute(2ms);
    std::this_thread::sleep_for(15ms);  // a slow host
  }
  const std::size_t to = marks.mark();
  device->release();
  marks.settle();
  CHECK(marks.issued_s(from, to) >= 0.06);
  CHECK(marks.done_s(from, to) >= 0.008);
  CHECK(marks.done_s(from, to) < 0.05);
  CHECK(marks.done(from) >= marks.issued(to));
}

TEST_CASE("a host that waits for a device that it holds back goes on") {
  stand_in::set_devices(1);
  const auto device = open_device("cuda");
  const Clock::time_point start = Clock::now();
  device->hold(50ms);
  device->drain();
  CHECK(seconds_since(start) >= 0.05);
  CHECK(seconds_since(start) < 5.0);
  device->hold(10s);
  device->release();
  device->drain();
  CHECK(seconds_since(start) < 5.0);
}

TEST_CASE("a device that is not there is refused in one line") {
  using Catch::Contains;
  CHECK(open_device("cpu") == nullptr);
  CHECK_THROWS_WITH(open_device("gpu"), Contains("--device") && Contains("cpu, cuda"));
  stand_in::set_devices(0);
  CHECK_THROWS_WITH(
      open_device("cuda"),
      "--device cuda: this machine has no GPU that CUDA finds: no CUDA-capable device is detected");
  stand_in::set_devices(8);
}

TEST_CASE("without a device both clocks are the host's") {
  StepMarks marks(nullptr);
  marks.restart();
  const std::size_t from = marks.mark();
  std::this_thread::sleep_for(2ms);
  const std::size_t to = marks.mark();
  marks.settle();
  CHECK(marks.issued_s(from, to) >= 0.002);
  CHECK(marks.done_s(from, to) == marks.issued_s(from, to));
}

}  // namespace stepcast::device_queue_test
