#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <type_traits>
#include <utility>

#include "core/error.hpp"

/// Streams and events of the CUDA runtime, and their times.
namespace stepcast {

/// \throws RunError that names the failed call
inline void require_cuda(cudaError_t status, const char* what) {
  if (status != cudaSuccess) throw RunError(std::string(what) + ": " + cudaGetErrorString(status));
}

/// `CUDA 13.0`, that this was compiled with: CUDART_VERSION is 1000 major + 10 minor.
inline std::string cuda_version() {
  return "CUDA " + std::to_string(CUDART_VERSION / 1000) + "." + std::to_string(CUDART_VERSION % 1000 / 10);
}

/// Number of GPUs that CUDA_VISIBLE_DEVICES leaves, at least one. \param requested_by begins the error:
/// `--device cuda: ` \throws CapabilityError if there are none
inline int count_cuda_devices(const std::string& requested_by) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess || count == 0)
    throw CapabilityError(requested_by + "this machine has no GPU that CUDA finds" +
                          (status == cudaSuccess ? "" : std::string(": ") + cudaGetErrorString(status)));
  return count;
}

/// Sets the device of the calling thread. \throws CapabilityError without a GPU; UsageError if there are
/// fewer
inline void enter_cuda_device(const std::string& requested_by, int device) {
  const int count = count_cuda_devices(requested_by);
  if (device >= count)
    throw UsageError("{}rank {} of this host has no GPU: there are {}, one per rank", requested_by, device,
                     count);
  require_cuda(cudaSetDevice(device), "cudaSetDevice");
}

/// `NVIDIA H100 80GB HBM3`
inline std::string cuda_device_name(int device) {
  cudaDeviceProp properties{};
  require_cuda(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  return static_cast<const char*>(properties.name);
}

using CudaStream = std::shared_ptr<std::remove_pointer_t<cudaStream_t>>;

/// Stream that does not wait for the default stream. \pre the device is set
inline CudaStream make_cuda_stream() {
  cudaStream_t stream = nullptr;
  require_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  return {stream, cudaStreamDestroy};
}

using CudaEvent = std::shared_ptr<std::remove_pointer_t<cudaEvent_t>>;

/// Event that `stream` reaches when all work before it is done. It keeps the time.
inline CudaEvent record_cuda_event(cudaStream_t stream) {
  cudaEvent_t event = nullptr;
  require_cuda(cudaEventCreateWithFlags(&event, cudaEventDefault), "cudaEventCreateWithFlags");
  CudaEvent owner(event, cudaEventDestroy);
  require_cuda(cudaEventRecord(event, stream), "cudaEventRecord");
  return owner;
}

/// An event and its time on the clock of the host.
struct CudaInstant {
  CudaEvent event;
  std::chrono::steady_clock::time_point time;
};

/// Time of an event on the clock of the host, from its distance to `origin`.
inline std::chrono::steady_clock::time_point time_from(const CudaInstant& origin, const CudaEvent& event) {
  float milliseconds = 0.0F;
  require_cuda(cudaEventElapsedTime(&milliseconds, origin.event.get(), event.get()), "cudaEventElapsedTime");
  const std::chrono::duration<double, std::milli> distance(milliseconds);
  return origin.time + std::chrono::duration_cast<std::chrono::steady_clock::duration>(distance);
}

/// Compares the clock of a device with that of the host. Polls an event, since waking up from a wait takes
/// longer. The event happened between two polls; of several tries the one with the closest polls counts,
/// since the host may do something else between them. \pre the stream is idle
inline CudaInstant compare_cuda_clocks(cudaStream_t stream) {
  using Clock = std::chrono::steady_clock;
  constexpr int kTries = 10;
  constexpr std::chrono::microseconds kClose{20};
  CudaInstant best;
  Clock::duration closest = Clock::duration::max();
  for (int tries = 0; tries < kTries && closest > kClose; ++tries) {
    Clock::time_point before = Clock::now(), look = before;
    const CudaEvent event = record_cuda_event(stream);
    cudaError_t status = cudaEventQuery(event.get());
    for (; status == cudaErrorNotReady; status = cudaEventQuery(event.get()))
      before = std::exchange(look, Clock::now());
    require_cuda(status, "cudaEventQuery");
    const Clock::time_point after = Clock::now();
    if (after - before >= closest) continue;
    closest = after - before;
    best = {event, after};
  }
  return best;
}

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
