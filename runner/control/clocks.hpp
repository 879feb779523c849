#pragma once

#include <ctime>

/// The clocks of a measurement.
namespace stepcast {

inline double clock_s(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// Seconds of the steady clock; only differences mean something.
inline double wall_clock_s() { return clock_s(CLOCK_MONOTONIC); }

/// CPU seconds of all threads of this process.
inline double process_cpu_s() { return clock_s(CLOCK_PROCESS_CPUTIME_ID); }

/// CPU seconds of the calling thread.
inline double thread_cpu_s() { return clock_s(CLOCK_THREAD_CPUTIME_ID); }

}  // namespace stepcast
