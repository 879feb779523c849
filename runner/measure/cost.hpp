#pragma once

#include "runner/control/clocks.hpp"

namespace stepcast {

struct Cost {
  double time_s = 0.0;
  double cpu_s = 0.0;
};

/// What `work` takes, per one of the `calls` that it makes. \param cpu_clock process_cpu_s or thread_cpu_s
template <class Work>
Cost cost_of(double calls, double (*cpu_clock)(), Work work) {
  const double cpu = cpu_clock();
  const double begin = wall_clock_s();
  work();
  return {(wall_clock_s() - begin) / calls, (cpu_clock() - cpu) / calls};
}

}  // namespace stepcast
