#include "runner/control/clocks.hpp"

#include <ctime>

namespace stepcast {
namespace {

double read(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace

double wall_clock_s() { return read(CLOCK_MONOTONIC); }

double process_cpu_s() { return read(CLOCK_PROCESS_CPUTIME_ID); }

double thread_cpu_s() { return read(CLOCK_THREAD_CPUTIME_ID); }

}  // namespace stepcast
