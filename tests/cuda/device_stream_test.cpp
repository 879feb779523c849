#include <catch2/catch.hpp>
#include <chrono>
#include <thread>

#include "core/error.hpp"
#include "runner/execute/device_library.hpp"
#include "runner/execute/step_timestamps.hpp"
#include "tests/nccl/stand_in.hpp"

namespace stepcast::device_stream_test {

namespace {

using namespace std::chrono_literals;
using Clock = DeviceStream::Clock;

/// A kernel of the default stream.
void compute(std::chrono::milliseconds time) {
  stand_in::launch(nullptr, [time] { std::this_thread::sleep_for(time); });
}

/// Of the device's times on the host's clock.
constexpr double kClockError = 1e-3;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

TEST_CASE("launch times are separate from device times") {
  stand_in::set_devices(1);
  const auto device = open_device("cuda");
  CHECK(device->device() == "a GPU of the stand-in");
  CHECK(device->bus() == "0000:01:00.0");
  StepTimestamps marks(device.get());
  for (int step = 0; step < 2; ++step) {  // events are used again
    marks.restart();
    const std::size_t start = marks.record_event();
    compute(30ms);
    const std::size_t first = marks.record_event();
    compute(60ms);
    const std::size_t second = marks.record_event();
    marks.settle();
    CHECK(second == 2);
    CHECK(marks.done_s(start, first) >= 0.03 - kClockError);
    CHECK(marks.done_s(first, second) >= 0.06 - kClockError);
    CHECK(marks.issued_s(start, second) >= 0.0);
    CHECK(seconds_since(marks.done(second)) >= -kClockError);
  }
}

TEST_CASE("a blocked device begins when all work is enqueued, and then never waits") {
  stand_in::set_devices(1);
  const auto device = open_device("cuda");
  StepTimestamps marks(device.get());
  marks.restart();
  device->drain();
  device->hold(10s);
  const std::size_t from = marks.record_event();
  for (int i = 0; i < 4; ++i) {
    compute(2ms);
    std::this_thread::sleep_for(15ms);  // a slow host
  }
  const std::size_t to = marks.record_event();
  device->release();
  marks.settle();
  CHECK(marks.issued_s(from, to) >= 0.06);
  CHECK(marks.done_s(from, to) >= 0.008 - kClockError);
  CHECK(marks.done(from) >= marks.issued(to));
}

TEST_CASE("a host that waits for a device that it holds back goes on") {
  stand_in::set_devices(1);
  const auto device = open_device("cuda");
  const Clock::time_point start = Clock::now();
  device->hold(50ms);
  device->drain();
  CHECK(seconds_since(start) >= 0.05);
  device->hold(120s);
  device->release();
  device->drain();
  CHECK(seconds_since(start) < 60.0);  // half of the hold
}

TEST_CASE("work behind a hold goes on after the stream that holds it is destroyed") {
  stand_in::set_devices(1);
  const Clock::time_point start = Clock::now();
  auto device = open_device("cuda");
  compute(30ms);
  device->hold(120s);
  device.reset();  // before the device reaches the hold
  open_device("cuda")->drain();
  CHECK(seconds_since(start) < 60.0);  // half of the hold
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
  StepTimestamps marks(nullptr);
  marks.restart();
  const std::size_t from = marks.record_event();
  std::this_thread::sleep_for(2ms);
  const std::size_t to = marks.record_event();
  marks.settle();
  CHECK(marks.issued_s(from, to) >= 0.002);
  CHECK(marks.done_s(from, to) == marks.issued_s(from, to));
}

}  // namespace stepcast::device_stream_test
