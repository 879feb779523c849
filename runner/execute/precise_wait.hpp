#pragma once

#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <ctime>

namespace stepcast {

/// Lets one thread wait until a time, at most some microseconds late, while other threads keep the cores
/// busy, and without using a core itself.
///
/// A timer is late by 20 to 60 us on a virtual machine (more if its host is busy), less on bare metal. The
/// thread sets it early by the median lateness of its waits, at most kLatestTimer, and spins for the rest. So
/// a wait shorter than that only spins, a longer one takes 10 to 30 us of a core, and a wait whose timer is
/// later ends late by the difference. The 90th percentile instead of the median would keep more waits in
/// time, but eight ranks on two cores then delay each other's messages.
///
/// A core whose thread waits here represents a busy core. An idle core takes 20 to 100 us to wake up, which
/// would be part of every message that arrives then. While this lives, idle cores are kept awake
/// (/dev/cpu_dma_latency, as root).
///
/// A thread that wakes up under SCHED_OTHER or SCHED_BATCH waits for the end of another thread's slice,
/// milliseconds; one under SCHED_FIFO does not. So the thread is SCHED_FIFO while this lives, which requires
/// root or CAP_SYS_NICE; without it waits end late on busy cores. A waiting thread has priority over others
/// that have such waits and do something else at the moment. The own policy is not restored after every wait,
/// because a thread that changes from SCHED_FIFO to SCHED_BATCH goes to the end of the run queue: on two
/// cores with 8 busy threads half of all waits then ended more than 1.7 ms late. Threads that it starts
/// meanwhile are SCHED_FIFO too.
class PreciseWait {
 public:
  using Clock = std::chrono::steady_clock;
  using nanoseconds = std::chrono::nanoseconds;

  /// Waits end late if the median timer is later than this. The virtual machine's host then takes the core
  /// away, and being early by as much would waste it.
  static constexpr nanoseconds kLatestTimer{200'000};

  /// Takes priority for the calling thread, which alone may use and destroy this.
  PreciseWait() : policy_(::sched_getscheduler(0)), awake_(keep_cores_awake()) {
    sched_param parameters{};
    ::sched_getparam(0, &parameters);
    priority_ = parameters.sched_priority;
    has_priority_ = schedule_this_thread(SCHED_FIFO, kBetweenWaits);
    ::prctl(PR_SET_TIMERSLACK, 1UL);  // allowed lateness of timers under other policies
  }

  ~PreciseWait() {
    if (has_priority_) schedule_this_thread(policy_, priority_);
    ::prctl(PR_SET_TIMERSLACK, 0UL);  // the default again
    if (awake_ >= 0) ::close(awake_);
  }
  PreciseWait& operator=(PreciseWait&&) = delete;

  /// Returns at `instant`, or at once if it has passed. Tracks the median of the timer's lateness: one step
  /// up if it was later, one down if it was not.
  void until(Clock::time_point instant) {
    constexpr nanoseconds kStep{1'000};
    const Clock::time_point timer = instant - timer_late_ - kMargin;
    const bool sleeps = Clock::now() < timer;
    if (sleeps) {
      if (has_priority_) schedule_this_thread(SCHED_FIFO, kWaiting);
      sleep_until(timer);
      timer_late_ += Clock::now() - timer > timer_late_ ? kStep : -kStep;
      timer_late_ = std::clamp(timer_late_, nanoseconds::zero(), kLatestTimer);
    }
    while (Clock::now() < instant) {
    }
    if (sleeps && has_priority_) schedule_this_thread(SCHED_FIFO, kBetweenWaits);
  }

  /// True if the system gives this thread priority over others.
  [[nodiscard]] bool has_priority() const { return has_priority_; }

 private:
  // Priorities of SCHED_FIFO. A thread that changes to a lower one keeps the core before its equals.
  static constexpr int kBetweenWaits = 1, kWaiting = 2;

  /// Margin for reading the clock and leaving the loop.
  static constexpr nanoseconds kMargin{3'000};

  /// Unlike the standard library's it does not read the clock first, so that a thread that loses its core
  /// then is not late. The steady clock is CLOCK_MONOTONIC.
  static void sleep_until(Clock::time_point instant) {
    const auto since_boot = std::chrono::duration_cast<nanoseconds>(instant.time_since_epoch());
    const auto whole = std::chrono::duration_cast<std::chrono::seconds>(since_boot);
    timespec when{};
    when.tv_sec = whole.count();
    when.tv_nsec = (since_boot - whole).count();
    while (::clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &when, nullptr) == EINTR) {
    }
  }

  static bool schedule_this_thread(int policy, int priority) {
    sched_param parameters{};
    parameters.sched_priority = priority;
    return ::sched_setscheduler(0, policy, &parameters) == 0;
  }

  /// Opens a file that makes the kernel keep idle cores awake (PM QoS); -1 if that is not allowed.
  static int keep_cores_awake() {
    const int file = ::open("/dev/cpu_dma_latency", O_WRONLY | O_CLOEXEC);
    const std::int32_t most_us = 0;
    if (file >= 0 && ::write(file, &most_us, sizeof most_us) != sizeof most_us) {
      ::close(file);
      return -1;
    }
    return file;
  }

  int policy_;    ///< of the thread at construction
  int priority_;  ///< of the thread at construction
  bool has_priority_;
  int awake_;                       ///< open file that keeps cores awake; -1: not allowed
  nanoseconds timer_late_{20'000};  ///< median lateness of the timers
};

}  // namespace stepcast
