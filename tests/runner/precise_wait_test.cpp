#include "runner/execute/precise_wait.hpp"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <ctime>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "core/statistics.hpp"

namespace stepcast::precise_wait_test {

namespace {

using Clock = std::chrono::steady_clock;
using Microseconds = std::chrono::duration<double, std::micro>;

/// Threads that keep every core busy while this lives.
class BusyThreads {
 public:
  explicit BusyThreads(int count) {
    for (int i = 0; i < count; ++i)
      threads_.emplace_back([this] {
        while (!stop_) {
        }
      });
  }
  ~BusyThreads() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
  }
  BusyThreads(const BusyThreads&) = delete;
  BusyThreads& operator=(const BusyThreads&) = delete;
  BusyThreads(BusyThreads&&) = delete;
  BusyThreads& operator=(BusyThreads&&) = delete;

 private:
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
};

double cpu_seconds_of_this_thread() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

struct Waits {
  std::vector<double> late_us;
  std::vector<double> timer_late_us;  ///< of plain timers between the waits
  double waited_s = 0.0;
  double cpu_s = 0.0;
};

/// How late a plain timer of `length` wakes this thread.
double timer_late_us(std::chrono::microseconds length) {
  const Clock::time_point end = Clock::now() + length;
  std::this_thread::sleep_until(end);
  return Microseconds(Clock::now() - end).count();
}

/// 200 waits of 0.2 to 3 ms, with a plain timer of the same thread and priority after each.
Waits wait_often() {
  Waits waits;
  PreciseWait wait;
  std::mt19937 random(7);
  for (int i = 0; i < 200; ++i) {
    const std::chrono::microseconds length(200 + random() % 2800);
    const double cpu_before = cpu_seconds_of_this_thread();
    const Clock::time_point end = Clock::now() + length;
    wait.until(end);
    waits.late_us.push_back(Microseconds(Clock::now() - end).count());
    waits.waited_s += std::chrono::duration<double>(length).count();
    waits.cpu_s += cpu_seconds_of_this_thread() - cpu_before;
    waits.timer_late_us.push_back(timer_late_us(length));
  }
  return waits;
}

/// \pre this thread may take SCHED_FIFO
void check_precise() {
  const Waits waits = wait_often();
  INFO("median " << median(waits.late_us) << " us, p90 " << quantile(waits.late_us, 0.9) << " us, worst "
                 << quantile(waits.late_us, 1.0) << " us late, plain timers p90 "
                 << quantile(waits.timer_late_us, 0.9) << " us; CPU " << waits.cpu_s << " s of "
                 << waits.waited_s << " s");
  REQUIRE(quantile(waits.timer_late_us, 0.9) <= Microseconds(PreciseWait::kLatestTimer).count());
  CHECK(quantile(waits.late_us, 0.9) <= 50.0);
  CHECK(waits.cpu_s < 0.1 * waits.waited_s);
}

}  // namespace

TEST_CASE("no wait ends early, however busy the cores are", "[wait]") {
  const BusyThreads busy(8);
  const Waits waits = wait_often();
  CHECK(*std::min_element(waits.late_us.begin(), waits.late_us.end()) >= 0.0);
}

// Hidden, because how late a timer fires is a property of the machine: a virtual machine whose host takes its
// cores away cannot pass.
TEST_CASE(
    "nine in ten waits end at most 50 us late while 8 threads share the cores, for under 10 % of a core",
    "[wait][.machine]") {
  REQUIRE(PreciseWait().has_priority());  // root or CAP_SYS_NICE
  const BusyThreads busy(8);
  check_precise();
}

TEST_CASE("waits on idle cores are as precise", "[wait][.machine]") {
  REQUIRE(PreciseWait().has_priority());
  check_precise();
}

TEST_CASE("a thread has its former policy after its waits", "[wait]") {
  const sched_param no_priority{};
  int before = -1;
  int after = -1;
  std::thread([&] {
    ::sched_setscheduler(0, SCHED_BATCH, &no_priority);
    before = ::sched_getscheduler(0);
    PreciseWait().until(Clock::now() + std::chrono::milliseconds(1));
    after = ::sched_getscheduler(0);
  }).join();
  CHECK(before == SCHED_BATCH);
  CHECK(after == SCHED_BATCH);
}

TEST_CASE("a wait for a past time returns at once", "[wait]") {
  PreciseWait wait;
  const Clock::time_point before = Clock::now();
  wait.until(before - std::chrono::hours(1));
  CHECK(Clock::now() - before < std::chrono::hours(1));
}

}  // namespace stepcast::precise_wait_test
