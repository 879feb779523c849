#pragma once

#include <mutex>

#include "runner/cuda/cuda_runtime.hpp"

namespace stepcast {

/// Times of events of a device on the steady clock. CUDA gives the distance of two events as a float of
/// milliseconds, so that a distance of s seconds is exact to about 6e-8 s. After eight seconds the latest
/// event becomes the origin, which costs less than a microsecond of accuracy per move. The clocks drift apart
/// by some microseconds per second after they were compared.
class DeviceTimeline {
 public:
  using Clock = std::chrono::steady_clock;

  /// \pre the stream is idle, and of the device that is set \throws RunError
  explicit DeviceTimeline(cudaStream_t stream) : origin_(compare_cuda_clocks(stream)) {}
  /// Compares the clocks again, under the same precondition.
  void restart(cudaStream_t stream) {
    const std::scoped_lock lock(mutex_);
    origin_ = compare_cuda_clocks(stream);
  }
  /// \pre the event, of the same device, has happened
  [[nodiscard]] Clock::time_point time_of(const CudaEvent& event) {
    constexpr std::chrono::seconds kFar{8};
    const std::scoped_lock lock(mutex_);
    const Clock::time_point time = time_from(origin_, event);
    if (time - origin_.time > kFar) origin_ = {event, time};
    return time;
  }

 private:
  std::mutex mutex_;
  CudaInstant origin_;
};

}  // namespace stepcast
