#include "runner/cuda/device_timeline.hpp"

namespace stepcast {

void DeviceTimeline::restart(cudaStream_t stream) {
  const std::scoped_lock lock(mutex_);
  origin_ = compare_cuda_clocks(stream);
}

DeviceTimeline::Clock::time_point DeviceTimeline::time_of(const CudaEvent& event) {
  constexpr double kMilli = 1e-3;
  constexpr double kFar = 8.0;
  const std::scoped_lock lock(mutex_);
  float milliseconds = 0.0F;
  require_cuda(cudaEventElapsedTime(&milliseconds, origin_.event.get(), event.get()), "cudaEventElapsedTime");
  const double after = kMilli * static_cast<double>(milliseconds);
  const Clock::time_point time =
      origin_.time + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(after));
  if (after > kFar) origin_ = {event, time};
  return time;
}

}  // namespace stepcast
