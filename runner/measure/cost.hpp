#pragma once

#include <chrono>
#include <vector>

#include "core/clocks.hpp"
#include "records/watch.hpp"
#include "runner/execute/device_stream.hpp"

namespace stepcast {

/// Cost of one call on one rank.
struct Cost {
  double time_s = 0.0;
  double cpu_s = 0.0;
  /// Part of the time that the calling thread waited for a CPU core; of cost_alone()
  double queued_s = 0.0;
  std::vector<double> values{};  ///< further numbers of the same sample
};

/// Cost of `work` per one of the `calls` that it makes. \param cpu_clock process_cpu_s or thread_cpu_s
template <class Work>
Cost cost_of(double calls, double (*cpu_clock)(), Work work) {
  const double cpu = cpu_clock();
  const double begin = wall_clock_s();
  work();
  return {(wall_clock_s() - begin) / calls, (cpu_clock() - cpu) / calls};
}

/// As cost_of(), for work that the calling thread does alone and without a pause.
template <class Work>
Cost cost_alone(double calls, Work work) {
  const RunQueueDelay delay(RunQueueDelay::Of::kThisThread);
  const double before = delay.seconds();
  Cost cost = cost_of(calls, thread_cpu_s, work);
  cost.queued_s = (delay.seconds() - before) / calls;
  return cost;
}

/// Issues work while the device is blocked, so that it starts when all is issued.
template <class Issue>
void issue_blocked(DeviceStream& device, const Issue& issue) {
  constexpr std::chrono::milliseconds kLongest{500};  // issuing a hundred calls takes some milliseconds
  device.hold(kLongest);
  try {
    issue();
  } catch (...) {
    device.release();
    throw;
  }
  device.release();
}

}  // namespace stepcast
