#pragma once

#include "records/machine_state.hpp"
#include "runner/control/clocks.hpp"

namespace stepcast {

struct Cost {
  double time_s = 0.0;
  double cpu_s = 0.0;
  double waited_s = 0.0;  ///< of the time, in line for a core; of cost_alone()
};

/// What `work` takes, per one of the `calls` that it makes. \param cpu_clock process_cpu_s or thread_cpu_s
template <class Work>
Cost cost_of(double calls, double (*cpu_clock)(), Work work) {
  const double cpu = cpu_clock();
  const double begin = wall_clock_s();
  work();
  return {(wall_clock_s() - begin) / calls, (cpu_clock() - cpu) / calls};
}

/// The same of work that the calling thread does alone and without a pause.
template <class Work>
Cost cost_alone(double calls, Work work) {
  const double before = thread_waited_s();
  Cost cost = cost_of(calls, thread_cpu_s, work);
  cost.waited_s = (thread_waited_s() - before) / calls;
  return cost;
}

}  // namespace stepcast
