#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/registry.hpp"

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

/// Opens the device of that number, from 0, for the calling thread. \throws CapabilityError if this machine
/// has none; UsageError if it has fewer
using DeviceStreamFactory = std::function<std::unique_ptr<DeviceStream>(int)>;
/// Libraries that this program was built with: none, or `cuda`.
Registry<DeviceStreamFactory>& device_streams();

/// True for `cuda`, false for `cpu`. Does not look for a device. \throws UsageError for another name;
/// CapabilityError if this program was built without CUDA
bool names_device(const std::string& name);

/// Stream of `cuda`; null for `cpu`. \param number of the device among those that CUDA_VISIBLE_DEVICES
/// leaves: the rank among those of its host \throws as names_device() and DeviceStreamFactory
std::unique_ptr<DeviceStream> open_device(const std::string& name, int number = 0);

/// Timestamps of a step, each taken twice: when the launch thread passed it and when the device reached it.
/// Without a device both are equal.
class StepTimestamps {
 public:
  using Clock = DeviceStream::Clock;

  /// \param device null: the CPU computes \pre it outlives this
  explicit StepTimestamps(DeviceStream* device) : device_(device) {}

  /// Counts CPU time of this process between consecutive timestamps, at most the time between them, without
  /// time lost to other processes: for a host that computes in one thread and waits for no rank. \pre no
  /// device
  void count_processor_time(bool counts) { counts_processor_ = counts; }
  [[nodiscard]] bool counts_processor_time() const { return counts_processor_; }

  /// Drops all timestamps; to be called before timed work.
  void restart();
  /// Takes a timestamp. From any thread, but not from several at once. \return its number
  std::size_t record_event();
  /// Waits for the device, so that the timestamps since restart() can be read.
  void settle();
  /// Seconds between two timestamps, of the launch thread and of the device.
  [[nodiscard]] double issued_s(std::size_t from, std::size_t to) const;
  [[nodiscard]] double done_s(std::size_t from, std::size_t to) const;
  /// Time at which the launch thread passed the timestamp.
  [[nodiscard]] Clock::time_point issued(std::size_t mark) const { return issued_[mark]; }
  /// Time at which the device reached it, on the clock of the host.
  [[nodiscard]] Clock::time_point done(std::size_t mark) const { return done_[mark]; }

 private:
  DeviceStream* device_;
  bool counts_processor_ = false;
  std::vector<Clock::time_point> issued_, done_;
  std::vector<double> ran_s_;  ///< CPU time by timestamp, if it is counted
};

}  // namespace stepcast
