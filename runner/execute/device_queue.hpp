#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/registry.hpp"

/// The device that a rank computes on where that is not this host's processors. Includes no CUDA.
namespace stepcast {

/// The queue in which a device does what its host has issued: the default stream of a GPU, on which LibTorch computes.
/// The host goes on as soon as something is in the queue. Marks tell when the device came by, on the host's clock.
class DeviceQueue {
 public:
  using Clock = std::chrono::steady_clock;

  virtual ~DeviceQueue() = default;
  DeviceQueue() = default;
  DeviceQueue(const DeviceQueue&) = delete;
  DeviceQueue& operator=(const DeviceQueue&) = delete;

  /// What computes: `NVIDIA H100 80GB HBM3`.
  [[nodiscard]] virtual std::string device() const = 0;
  /// As LibTorch calls it; tests have one that is this host.
  [[nodiscard]] virtual std::string torch_name() const { return "cuda:0"; }
  /// Its place on the bus, by which the driver's other libraries know it: `00000000:0F:00.0`.
  [[nodiscard]] virtual std::string bus() const = 0;

  /// Drops all marks and compares the clocks anew, for which it waits until the device is idle: to be called before what is
  /// timed. Clocks drift apart by some microseconds per second. \throws RunError, as all of these
  virtual void restart() = 0;
  /// Puts a mark behind all that is in the queue. From any thread. \return its number, from 0 since restart()
  virtual std::size_t mark() = 0;
  /// Waits until the device is idle.
  virtual void drain() = 0;
  /// When the device passed a mark. Two marks are apart to within 1 us, the host's clock is met to within a few.
  /// \pre it has, and restart() was called
  virtual Clock::time_point passed(std::size_t mark) = 0;

  /// The device waits before what is issued next, until release(); but no longer than `at_most`, so that a host that waits
  /// for the device goes on.
  virtual void hold(std::chrono::milliseconds at_most) = 0;
  virtual void release() = 0;
};

struct DeviceQueueFactory {
  /// Of the device of that number, from 0, which is the calling thread's from now on. \throws CapabilityError when this
  /// machine has none; UsageError when it has fewer
  std::function<std::unique_ptr<DeviceQueue>(int)> make;
  std::string library;  ///< with its version: `CUDA 13.0`
};
/// What this program was built with: empty, or `cuda`.
Registry<DeviceQueueFactory>& device_queues();

/// Whether something else than this host's processors, which are `cpu`, is meant. Looks for no device. \throws UsageError for
/// another name than `cpu` and `cuda`; CapabilityError where this program was built without CUDA
bool names_device(const std::string& name);

/// Where a rank computes: the queue of `cuda`; null of `cpu`. \param number of the device, among those that
/// CUDA_VISIBLE_DEVICES leaves: the rank's among those of its host \throws as names_device() and DeviceQueueFactory::make
std::unique_ptr<DeviceQueue> open_device(const std::string& name, int number = 0);

/// Instants of a step in the order in which the calling thread came by: on its clock, and when the device was as far. Where
/// nothing runs ahead both are the same.
class StepMarks {
 public:
  using Clock = DeviceQueue::Clock;

  /// \param device null: this host computes \pre it outlives this
  explicit StepMarks(DeviceQueue* device) : device_(device) {}

  /// Of what runs between two marks only the time that this process ran counts, and none that others took: for a host that
  /// computes in one thread and waits for nobody. \pre no device
  void count_processor_time(bool counts) { counts_processor_ = counts; }
  [[nodiscard]] bool counts_processor_time() const { return counts_processor_; }

  /// Before what is timed.
  void restart();
  /// From any thread, but not at once from several. \return its number
  std::size_t mark();
  /// Waits for the device; the marks since restart() can be read.
  void settle();
  /// Seconds between two marks, of the host and of the device.
  [[nodiscard]] double issued_s(std::size_t from, std::size_t to) const;
  [[nodiscard]] double done_s(std::size_t from, std::size_t to) const;
  /// When the calling thread came by.
  [[nodiscard]] Clock::time_point issued(std::size_t mark) const { return issued_[mark]; }
  /// When the device had passed it, on the host's clock.
  [[nodiscard]] Clock::time_point done(std::size_t mark) const { return done_[mark]; }

 private:
  DeviceQueue* device_;
  bool counts_processor_ = false;
  std::vector<Clock::time_point> issued_, done_;
  std::vector<double> ran_s_;  ///< by mark, where processor time counts
};

}  // namespace stepcast
