#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/registry.hpp"

/// Copies between the memories of this host and of its devices, all driven by one process. Includes no CUDA.
namespace stepcast {

/// Queues of copies. Each queue does one after the other; the host goes on as soon as a copy is in its queue, except that
/// of memory that is not pinned a driver first takes what it copies. Marks tell when a queue came by.
class DeviceCopies {
 public:
  using Clock = std::chrono::steady_clock;
  struct Mark {
    std::size_t queue = 0;
    std::size_t number = 0;  ///< from 0 since restart()
  };

  virtual ~DeviceCopies() = default;
  DeviceCopies() = default;
  DeviceCopies(const DeviceCopies&) = delete;
  DeviceCopies& operator=(const DeviceCopies&) = delete;

  /// Devices are numbered from 0.
  [[nodiscard]] virtual int devices() const = 0;
  /// `NVIDIA H100 80GB HBM3`
  [[nodiscard]] virtual std::string name(int device) const = 0;
  /// Whether one device copies to the other one's memory by itself; else the driver goes through the host's, which is
  /// slower. \throws RunError, as all of these
  virtual bool reaches(int from, int to) = 0;

  virtual std::shared_ptr<void> host_memory(std::size_t bytes, bool pinned) = 0;
  virtual std::shared_ptr<void> device_memory(int device, std::size_t bytes) = 0;
  /// Between any two of these memories; returns when it is done.
  virtual void copy_now(void* to, const void* from, std::size_t bytes) = 0;

  /// Another queue, of one device. \return its number, from 0
  virtual std::size_t make_queue(int device) = 0;
  virtual void copy(std::size_t queue, void* to, const void* from, std::size_t bytes) = 0;
  /// Puts a mark behind all that is in the queue.
  virtual Mark mark(std::size_t queue) = 0;
  /// What is put into the queue from now on comes after the mark, of another queue.
  virtual void follow(std::size_t queue, const Mark& mark) = 0;
  /// The host waits until the queue has passed it.
  virtual void wait(const Mark& mark) = 0;

  /// The host waits until the queue is empty.
  virtual void drain(std::size_t queue) = 0;

  /// Drops all marks and compares the clocks anew, for which it waits until all queues are empty.
  virtual void restart() = 0;
  /// When the queue passed it, on the host's clock. \pre it has
  virtual Clock::time_point passed(const Mark& mark) = 0;
};

/// Data by which copies are checked: shifted, they differ, and other seeds give others in every byte up to 250.
std::vector<unsigned char> copied_pattern(std::size_t bytes, unsigned seed = 0);

struct DeviceCopiesFactory {
  /// \throws CapabilityError when this machine has no device
  std::function<std::unique_ptr<DeviceCopies>()> make;
  std::string library;  ///< with its version: `CUDA 13.0`
};
/// What this program was built with: empty, or `cuda`.
Registry<DeviceCopiesFactory>& device_copies();
/// Its only entry. \param asked_by begins the error \throws CapabilityError where this program was built without CUDA
const Registry<DeviceCopiesFactory>::Entry& find_device_copies(const std::string& asked_by);

}  // namespace stepcast
