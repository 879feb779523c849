#pragma once

#include <string>
#include <vector>

#include "sim/kineto/host_sweep.hpp"

namespace stepcast {

/// What a profile contains of its devices, beside the times of steps and operations.
struct DeviceReport {
  bool any = false;                   ///< events of a device are in steps
  std::string name{};                 ///< GPU that ran most of the kernels; "": none, or not stated
  std::size_t gpus = 0;               ///< with kernels that are no collectives
  std::size_t unlinked = 0;           ///< events without a launch, before others of their stream
  std::vector<std::size_t> events{};  ///< of the device, by step
  std::vector<double> periods{};      ///< step to step: median distance of equal kernels with equal places,
                                      ///< else of first kernels; of one step the later of host and device
  bool runs_behind = false;           ///< the device ends its steps later and later after the host
  double lead = 0.0;                  ///< us between a step's first launch and its kernel, median
};

/// Gives the time of every kernel and copy to the step and the operation that launched it, wherever it runs:
/// by correlation to the launch, and its place on the CPU thread; without a launch, where the event before it
/// on its stream belongs. A gap between two kernels of the busiest stream belongs to the later one if that
/// was launched before the first ended, from the last end on another stream. What another stream of the
/// device does while the busiest one works takes no time.
DeviceReport add_device_times(const KinetoFile& file, const HostLaunches& launches,
                              std::vector<ProfiledStep>& steps);

}  // namespace stepcast
