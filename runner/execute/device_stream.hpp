#pragma once

#include <chrono>
#include <cstddef>
#include <string>

/// Device that a rank computes on, if it is not the CPU. Includes no CUDA.
namespace stepcast {

/// Stream of a device: the default stream of a GPU, on which LibTorch computes. The launch thread goes on as
/// soon as work is enqueued. Recorded events give the times at which the device reached them, on the clock of
/// the host.
class DeviceStream {
 public:
  using Clock = std::chrono::steady_clock;

  virtual ~DeviceStream() = default;
  DeviceStream& operator=(DeviceStream&&) = delete;

  /// Name of the device: `NVIDIA H100 80GB HBM3`.
  [[nodiscard]] virtual std::string device() const = 0;
  /// Name of the device in LibTorch; tests have a stream on the CPU.
  [[nodiscard]] virtual std::string torch_name() const { return "cuda:0"; }
  /// PCI bus id, by which other libraries of the driver identify the device: `00000000:0F:00.0`.
  [[nodiscard]] virtual std::string bus() const = 0;

  /// Drops all events and compares the clocks again, after waiting until the device is idle. To be called
  /// before timed work: clocks drift apart by some microseconds per second. \throws RunError, as all of these
  /// functions
  virtual void restart() = 0;
  /// Records an event after everything that is enqueued. From any thread. \return its number, from 0 since
  /// restart()
  virtual std::size_t record_event() = 0;
  /// Waits until the device is idle.
  virtual void drain() = 0;
  /// Time at which the device reached an event. The distance of two events is exact to 1 us, the clock of the
  /// host to a few us. \pre the device has reached it, and restart() was called
  virtual Clock::time_point time_of(std::size_t mark) = 0;

  /// Blocks the device before work that is enqueued next, until release() but at most for `at_most`, so that
  /// a host that waits for the device goes on.
  virtual void hold(std::chrono::milliseconds at_most) = 0;
  virtual void release() = 0;
};

}  // namespace stepcast
