#include "runner/execute/precise_wait.hpp"

#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <thread>

namespace stepcast {
namespace {

using Clock = std::chrono::steady_clock;

using std::chrono::nanoseconds;

// Priorities of SCHED_FIFO. A thread that changes to a lower one keeps the core before its equals.
constexpr int kBetweenWaits = 1;
constexpr int kWaiting = 2;

/// Margin for reading the clock and leaving the loop.
constexpr nanoseconds kMargin{3'000};

bool schedule_this_thread(int policy, int priority) {
  sched_param parameters{};
  parameters.sched_priority = priority;
  return ::sched_setscheduler(0, policy, &parameters) == 0;
}

/// Opens a file that makes the kernel keep idle cores awake (PM QoS); -1 if that is not allowed.
int keep_cores_awake() {
  const int file = ::open("/dev/cpu_dma_latency", O_WRONLY | O_CLOEXEC);
  const std::int32_t most_us = 0;
  if (file >= 0 && ::write(file, &most_us, sizeof most_us) != sizeof most_us) {
    ::close(file);
    return -1;
  }
  return file;
}

}  // namespace

PreciseWait::PreciseWait() : policy_(::sched_getscheduler(0)), awake_(keep_cores_awake()) {
  sched_param parameters{};
  ::sched_getparam(0, &parameters);
  priority_ = parameters.sched_priority;
  has_priority_ = schedule_this_thread(SCHED_FIFO, kBetweenWaits);
  ::prctl(PR_SET_TIMERSLACK, 1UL);  // allowed lateness of timers under other policies
}

PreciseWait::~PreciseWait() {
  if (has_priority_) schedule_this_thread(policy_, priority_);
  ::prctl(PR_SET_TIMERSLACK, 0UL);  // the default again
  if (awake_ >= 0) ::close(awake_);
}

/// Tracks the median of the timer's lateness: one step up if it was later, one down if it was not.
void PreciseWait::until(Clock::time_point instant) {
  constexpr nanoseconds kStep{1'000};
  const Clock::time_point timer = instant - timer_late_ - kMargin;
  const bool sleeps = Clock::now() < timer;
  if (sleeps) {
    if (has_priority_) schedule_this_thread(SCHED_FIFO, kWaiting);
    std::this_thread::sleep_until(timer);
    timer_late_ += Clock::now() - timer > timer_late_ ? kStep : -kStep;
    timer_late_ = std::clamp(timer_late_, nanoseconds::zero(), kLatestTimer);
  }
  while (Clock::now() < instant) {
  }
  if (sleeps && has_priority_) schedule_this_thread(SCHED_FIFO, kBetweenWaits);
}

}  // namespace stepcast
