#pragma once

#include <chrono>

namespace stepcast {

/// Lets one thread wait until an instant and no later than some microseconds after it, while other threads
/// keep the cores busy, and without burning a core itself.
///
/// A timer fires late, by 20 to 60 us on a virtual machine (by more where its host is busy), by less on bare
/// metal. The thread sets it early by what nine in ten of its waits were late, at most kLatestTimer, and
/// spins over what is left; so a wait shorter than that only spins, and a longer one takes 30 to 90 us of a
/// core.
///
/// A thread that wakes under SCHED_OTHER or SCHED_BATCH waits for the slice of whoever has the core,
/// milliseconds; one under SCHED_FIFO does not. So the thread is SCHED_FIFO as long as this lives, which
/// takes root or CAP_SYS_NICE; without it waits end late on busy cores. While it waits it goes ahead of
/// others that have such waits, too, and do something else at the moment. It is not given its own policy
/// again after every wait, because a thread that changes from SCHED_FIFO to SCHED_BATCH queues behind the
/// others: on two cores with 8 busy threads half of all waits then ended more than 1.7 ms late. Threads that
/// it starts meanwhile are SCHED_FIFO too.
class PreciseWait {
 public:
  /// Where more than one in ten timers is later than this, waits end late: its virtual machine's host has
  /// taken the core away, and to be early by as much would burn it.
  static constexpr std::chrono::nanoseconds kLatestTimer{200'000};

  /// Takes priority for the calling thread, which alone may use and destroy this.
  PreciseWait();
  ~PreciseWait();
  PreciseWait& operator=(PreciseWait&&) = delete;

  /// Returns at `instant`, or at once where that is over.
  void until(std::chrono::steady_clock::time_point instant);

  /// Whether the system lets this thread go ahead of others.
  [[nodiscard]] bool has_priority() const { return has_priority_; }

 private:
  int policy_;    ///< of the thread before
  int priority_;  ///< likewise
  bool has_priority_;
  std::chrono::nanoseconds timer_late_{20'000};  ///< nine in ten timers were less late
};

}  // namespace stepcast
