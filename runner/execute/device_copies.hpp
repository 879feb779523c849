#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "runner/backend/backend.hpp"

/// Copies between the memories of this host and of its devices, all driven by one process. Includes no CUDA.
namespace stepcast {

/// Streams of copies. A stream runs its copies one after another. The calling thread goes on as soon as a
/// copy is enqueued; of pageable memory the driver first takes the data. All functions throw RunError.
class DeviceCopies {
 public:
  virtual ~DeviceCopies() = default;
  DeviceCopies& operator=(DeviceCopies&&) = delete;

  /// Number of devices; they are numbered from 0.
  [[nodiscard]] virtual int devices() const = 0;
  /// `NVIDIA H100 80GB HBM3`
  [[nodiscard]] virtual std::string name(int device) const = 0;
  /// True if one device copies to the memory of the other by itself. Else the driver stages copies in host
  /// memory, which is slower.
  virtual bool reaches(int from, int to) = 0;

  virtual std::shared_ptr<void> host_memory(std::size_t bytes, bool pinned) = 0;
  virtual std::shared_ptr<void> device_memory(int device, std::size_t bytes) = 0;
  /// Copies between any two of these memories; returns when it is done.
  virtual void copy_now(void* to, const void* from, std::size_t bytes) = 0;

  /// Makes another stream, of one device. \return its number, from 0
  virtual std::size_t make_stream(int device) = 0;
  /// Handle for Work::precede().
  [[nodiscard]] virtual StreamHandle handle(std::size_t stream) const = 0;
  virtual void enqueue(std::size_t stream, void* to, const void* from, std::size_t bytes) = 0;
  /// Enqueues a copy between two events, which give its times on the host's clock.
  virtual WorkPtr copy(std::size_t stream, void* to, const void* from, std::size_t bytes) = 0;
  /// Waits until the stream is empty.
  virtual void drain(std::size_t stream) = 0;
  /// Waits until all streams are empty and compares the clocks of host and devices.
  virtual void restart_clock() = 0;
};

/// Data by which copies are checked. Data of other seeds, up to 250, differs in every byte.
inline std::vector<unsigned char> copied_pattern(std::size_t bytes, unsigned seed = 0) {
  constexpr std::size_t kPeriod = 251;  // a prime
  std::vector<unsigned char> result(bytes);
  for (std::size_t i = 0; i < bytes; ++i) result[i] = static_cast<unsigned char>(1 + (i + seed) % kPeriod);
  return result;
}

}  // namespace stepcast
