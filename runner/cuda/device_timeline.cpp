#include "runner/cuda/device_timeline.hpp"

namespace stepcast {

void DeviceTimeline::restart(cudaStream_t stream) {
  const std::scoped_lock lock(mutex_);
  origin_ = compare_cuda_clocks(stream);
}

DeviceTimeline::Clock::time_point DeviceTimeline::time_of(const CudaEvent& event) {
  constexpr std::chrono::seconds kFar{8};
  const std::scoped_lock lock(mutex_);
  const Clock::time_point time = time_from(origin_, event);
  if (time - origin_.time > kFar) origin_ = {event, time};
  return time;
}

}  // namespace stepcast
