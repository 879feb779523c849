#include <array>
#include <condition_variable>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "runner/cuda/cuda_queue.hpp"
#include "runner/execute/device_queue.hpp"

namespace stepcast {
namespace {

constexpr int kDevice = 0;  // of those that CUDA_VISIBLE_DEVICES leaves

/// Where the queue of a device stands still until somebody opens it.
class QueueGate {
 public:
  void close() {
    const std::scoped_lock lock(mutex_);
    closed_ = true;
  }
  void open() {
    {
      const std::scoped_lock lock(mutex_);
      closed_ = false;
    }
    changed_.notify_all();
  }
  void wait(std::chrono::milliseconds at_most) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, at_most, [this] { return !closed_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool closed_ = false;
};

/// The default stream of a GPU: that of all who name none, LibTorch among them. Events are kept from step to step.
class ComputeQueue final : public DeviceQueue {
 public:
  ComputeQueue() {
    int count = 0;
    const cudaError_t status = cudaGetDeviceCount(&count);
    if (status != cudaSuccess || count == 0)
      throw CapabilityError(std::string("--device cuda: this machine has no GPU that CUDA finds") +
                            (status == cudaSuccess ? "" : std::string(": ") + cudaGetErrorString(status)));
    require_cuda(cudaSetDevice(kDevice), "cudaSetDevice");
  }
  ~ComputeQueue() override { gate_.open(); }

  [[nodiscard]] std::string device() const override {
    cudaDeviceProp properties{};
    require_cuda(cudaGetDeviceProperties(&properties, kDevice), "cudaGetDeviceProperties");
    return static_cast<const char*>(properties.name);
  }

  [[nodiscard]] std::string bus() const override {
    std::array<char, 32> text{};
    require_cuda(cudaDeviceGetPCIBusId(text.data(), static_cast<int>(text.size()), kDevice),
                 "cudaDeviceGetPCIBusId");
    return text.data();
  }

  void restart() override {
    drain();
    const std::scoped_lock lock(mutex_);
    marks_ = 0;
    constexpr int kTries = 10;
    constexpr std::chrono::microseconds kClose{20};
    Clock::duration closest = Clock::duration::max();
    for (int tries = 0; tries < kTries && closest > kClose; ++tries) compare_clocks(closest);
  }

  std::size_t mark() override {
    const std::scoped_lock lock(mutex_);
    if (marks_ == events_.size())
      events_.push_back(record_cuda_event(nullptr));
    else
      require_cuda(cudaEventRecord(events_[marks_].get(), nullptr), "cudaEventRecord");
    return marks_++;
  }

  void drain() override { require_cuda(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize"); }

  Clock::time_point passed(std::size_t mark) override {
    constexpr double kMilli = 1e-3;
    float milliseconds = 0.0F;
    require_cuda(cudaEventElapsedTime(&milliseconds, origin_.get(), events_.at(mark).get()),
                 "cudaEventElapsedTime");
    return origin_time_ + std::chrono::duration_cast<Clock::duration>(
                              std::chrono::duration<double>(kMilli * static_cast<double>(milliseconds)));
  }

  void hold(std::chrono::milliseconds at_most) override {
    gate_.close();
    at_most_ = at_most;
    const auto stand = [](void* queue) {
      auto* self = static_cast<ComputeQueue*>(queue);
      self->gate_.wait(self->at_most_);
    };
    require_cuda(cudaLaunchHostFunc(nullptr, stand, this), "cudaLaunchHostFunc");
  }

  void release() override { gate_.open(); }

 private:
  /// Looks for an event, as to be woken up by it takes longer. It passed between two looks; of several the one counts whose
  /// looks were closest, since the host may do something else in between.
  void compare_clocks(Clock::duration& closest) {
    Clock::time_point before = Clock::now(), look = before;
    const CudaEvent event = record_cuda_event(nullptr);
    cudaError_t status = cudaEventQuery(event.get());
    for (; status == cudaErrorNotReady; status = cudaEventQuery(event.get()))
      before = std::exchange(look, Clock::now());
    require_cuda(status, "cudaEventQuery");
    const Clock::time_point after = Clock::now();
    if (after - before >= closest) return;
    closest = after - before;
    origin_ = event;
    origin_time_ = after;
  }

  std::mutex mutex_;
  CudaEvent origin_;
  Clock::time_point origin_time_;
  std::vector<CudaEvent> events_;
  std::size_t marks_ = 0;
  QueueGate gate_;
  std::chrono::milliseconds at_most_{0};
};

const Registration<DeviceQueueFactory> kCuda{
    device_queues(),
    {.name = "cuda",
     .description = "NVIDIA GPUs by the CUDA runtime",
     .thing = {.make = []() -> std::unique_ptr<DeviceQueue> { return std::make_unique<ComputeQueue>(); },
               .library = cuda_version()}}};

}  // namespace
}  // namespace stepcast
