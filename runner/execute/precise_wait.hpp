#pragma once

#include <chrono>

namespace stepcast {

/// Lets one thread wait until an instant and no later than some microseconds after it, while other threads
/// keep the cores busy, and without burning a core itself.
///
/// A timer fires late, by 20 to 60 us on a virtual machine (by more where its host is busy), by less on bare metal. The thread
/// sets it early by what half of its waits were late, at most kLatestTimer, and spins over what is left; so a wait shorter than
/// that only spins, a longer one takes 10 to 30 us of a core, and a wait whose timer is late ends late by the difference. To be
/// early by what nine in ten are late would keep more of them in time, but eight ranks on two cores then spin in the way of each
/// other's messages.
///
/// A core whose thread waits here would be busy if the thread did what the wait stands for. Asleep it would take 20 to 100 us
/// to wake up, which then were part of every message that finds it so. As long as this lives idle cores are kept from
/// sleeping (/dev/cpu_dma_latency, as root), which takes nothing from who wants them.
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
  /// Where half of the timers are later than this, waits end late: its virtual machine's host has taken the core away, and to
  /// be early by as much would burn it.
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
  int awake_;                                    ///< file whose being open keeps cores awake; -1: not allowed
  std::chrono::nanoseconds timer_late_{20'000};  ///< half of the timers were less late
};

}  // namespace stepcast
