#pragma once

#include <mutex>

#include "runner/cuda/cuda_queue.hpp"

namespace stepcast {

/// When events of a device happened, on the steady clock. A pair of events gives their distance as a float of
/// milliseconds, so that a distance of s seconds is exact to about 6e-8 s: after eight seconds the origin moves to
/// what has just ended, and an instant is off by less than a microsecond per move. The clocks drift apart by some
/// microseconds per second from when they were compared.
class DeviceTimeline {
 public:
  using Clock = std::chrono::steady_clock;

  /// \pre the stream is idle, and of the device that is set \throws RunError
  explicit DeviceTimeline(cudaStream_t stream) : origin_(compare_cuda_clocks(stream)) {}
  /// Compares the clocks anew, likewise.
  void restart(cudaStream_t stream);
  /// \pre the event, of the same device, has happened
  [[nodiscard]] Clock::time_point time_of(const CudaEvent& event);

 private:
  std::mutex mutex_;
  CudaInstant origin_;
};

}  // namespace stepcast
