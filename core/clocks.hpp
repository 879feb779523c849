#pragma once

#include <chrono>
#include <ctime>

/// The clocks of a measurement.
namespace stepcast {

/// Seconds of a clock; 0 for that of a process that has ended.
inline double clock_s(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// Seconds of the steady clock at a time; only differences mean something.
inline double clock_s(std::chrono::steady_clock::time_point time) {
  return std::chrono::duration<double>(time.time_since_epoch()).count();
}

/// Seconds of the steady clock now.
inline double wall_clock_s() { return clock_s(std::chrono::steady_clock::now()); }

/// CPU seconds of all threads of this process.
inline double process_cpu_s() { return clock_s(CLOCK_PROCESS_CPUTIME_ID); }

/// CPU seconds of the calling thread.
inline double thread_cpu_s() { return clock_s(CLOCK_THREAD_CPUTIME_ID); }

}  // namespace stepcast
