#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "records/run_context.hpp"
#include "runner/execute/device_stream.hpp"

/// Clocks, power and throttling of a GPU during a measurement.
namespace stepcast {

/// One reading of NVIDIA's management library.
struct GpuReading {
  double sm_clock_mhz = 0.0, memory_clock_mhz = 0.0;
  double power_w = 0.0, temperature_c = 0.0;
  unsigned long long throttle_reasons = 0;  ///< bits nvmlClocksThrottleReasons*
};

struct GpuDriver {
  std::string version;                                   ///< of the driver; "" without the library
  double highest_clock_mhz = 0.0;                        ///< of the multiprocessors
  std::function<std::optional<GpuReading>()> read = {};  ///< empty without the library; throws nothing
};
/// libnvidia-ml.so.1, if this machine has it. \param bus see DeviceStream::bus
GpuDriver gpu_driver(const std::string& bus);

/// `software power cap, thermal slowdown`; "" if nothing slows the GPU down. Idleness and clocks set by
/// applications are no slowdown.
std::string throttle_text(unsigned long long reasons);

/// Reasons to doubt times of that GPU; empty if none computed.
std::vector<std::string> doubts(const GpuState& state);

/// Reads five times a second on its own thread, from construction to report().
class GpuWatch {
 public:
  GpuWatch(std::string name, GpuDriver driver);
  /// \param device null: nothing is watched
  explicit GpuWatch(const DeviceStream* device);
  GpuWatch& operator=(GpuWatch&&) = delete;

  /// Medians of clocks, highest power and temperature, all reasons.
  GpuState report();

 private:
  std::string name_;
  GpuDriver driver_;
  std::vector<GpuReading> readings_;
  std::jthread thread_;
};

}  // namespace stepcast
