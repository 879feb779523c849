#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "records/run_context.hpp"

/// How a GPU was while something was measured on it: clocks, power, and what slowed it down.
namespace stepcast {

/// What NVIDIA's management library says of one GPU now.
struct GpuReading {
  double sm_clock_mhz = 0.0, memory_clock_mhz = 0.0;
  double power_w = 0.0;
  double temperature_c = 0.0;
  unsigned long long throttle_reasons = 0;  ///< bits, as nvmlClocksThrottleReasons* name them
};

/// Asks for one reading; may throw nothing.
using GpuReader = std::function<std::optional<GpuReading>()>;

struct GpuDriver {
  std::string version;             ///< of the driver; "" where the library is not there
  double highest_clock_mhz = 0.0;  ///< that the multiprocessors may reach
  GpuReader read;                  ///< empty where the library is not there
};
/// libnvidia-ml.so.1 where this machine has it. \param bus see DeviceQueue::bus
GpuDriver gpu_driver(const std::string& bus);

/// `software power cap, thermal slowdown`; "" where nothing slows the GPU down: idle, and clocks that applications set, do not.
std::string throttle_text(unsigned long long reasons);

/// What makes times of that GPU doubtful; nothing where none computed.
std::vector<std::string> doubts(const GpuState& state);

/// Reads five times a second on a thread of its own, from its making to report().
class GpuWatch {
 public:
  GpuWatch(std::string name, GpuDriver driver);
  ~GpuWatch();
  GpuWatch& operator=(GpuWatch&&) = delete;

  /// What was seen: medians of clocks, the most power and heat, all reasons.
  GpuState report();

 private:
  void stop();

  std::string name_;
  GpuDriver driver_;
  std::atomic<bool> stopping_{false};
  std::vector<GpuReading> readings_;
  std::thread thread_;
};

}  // namespace stepcast
