#pragma once

#include <chrono>

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
  /// Waits end late if the median timer is later than this. The virtual machine's host then takes the core
  /// away, and being early by as much would waste it.
  static constexpr std::chrono::nanoseconds kLatestTimer{200'000};

  /// Takes priority for the calling thread, which alone may use and destroy this.
  PreciseWait();
  ~PreciseWait();
  PreciseWait& operator=(PreciseWait&&) = delete;

  /// Returns at `instant`, or at once if it has passed.
  void until(std::chrono::steady_clock::time_point instant);

  /// True if the system gives this thread priority over others.
  [[nodiscard]] bool has_priority() const { return has_priority_; }

 private:
  int policy_;    ///< of the thread at construction
  int priority_;  ///< of the thread at construction
  bool has_priority_;
  int awake_;                                    ///< open file that keeps cores awake; -1: not allowed
  std::chrono::nanoseconds timer_late_{20'000};  ///< median lateness of the timers
};

}  // namespace stepcast
