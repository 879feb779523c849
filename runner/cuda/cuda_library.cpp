#include <array>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "runner/cuda/cuda_runtime.hpp"
#include "runner/execute/device_library.hpp"

namespace stepcast {
namespace {

/// Default stream of a GPU, which LibTorch uses too. Events are reused from step to step.
class ComputeStream final : public DeviceStream {
 public:
  /// \param number among the GPUs that CUDA_VISIBLE_DEVICES leaves
  explicit ComputeStream(int number) : number_(number) { enter_cuda_device("--device cuda: ", number); }

  [[nodiscard]] std::string device() const override { return cuda_device_name(number_); }

  [[nodiscard]] std::string torch_name() const override { return "cuda:" + std::to_string(number_); }

  [[nodiscard]] std::string bus() const override {
    std::array<char, 32> text{};
    require_cuda(cudaDeviceGetPCIBusId(text.data(), static_cast<int>(text.size()), number_),
                 "cudaDeviceGetPCIBusId");
    return text.data();
  }

  void restart() override {
    drain();
    const std::scoped_lock lock(mutex_);
    marks_ = 0;
    origin_ = compare_cuda_clocks(nullptr);
  }

  std::size_t record_event() override {
    const std::scoped_lock lock(mutex_);
    if (marks_ == events_.size())
      events_.push_back(record_cuda_event(nullptr));
    else
      require_cuda(cudaEventRecord(events_[marks_].get(), nullptr), "cudaEventRecord");
    return marks_++;
  }

  void drain() override { require_cuda(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize"); }

  Clock::time_point time_of(std::size_t mark) override { return time_from(origin_, events_.at(mark)); }

  void hold(std::chrono::milliseconds at_most) override {
    held_ = {};
    auto hold = std::make_unique<Hold>(Hold{held_.get_future(), at_most});
    const auto stand = [](void* data) {
      const std::unique_ptr<Hold> own(static_cast<Hold*>(data));
      own->released.wait_for(own->at_most);
    };
    require_cuda(cudaLaunchHostFunc(nullptr, stand, hold.get()), "cudaLaunchHostFunc");
    static_cast<void>(hold.release());  // the stream owns it, which may outlive this
  }

  void release() override { held_ = {}; }

 private:
  struct Hold {
    std::future<void> released;
    std::chrono::milliseconds at_most;
  };

  int number_;
  std::mutex mutex_;
  CudaInstant origin_;
  std::vector<CudaEvent> events_;
  std::size_t marks_ = 0;
  std::promise<void> held_;  ///< the stream goes on when this ends, by destruction or assignment
};

void enter(int device) { require_cuda(cudaSetDevice(device), "cudaSetDevice"); }

/// Copy between two events of its stream.
class CudaCopy final : public Work {
 public:
  CudaCopy(std::shared_ptr<DeviceTimeline> timeline, CudaEvent start, CudaEvent end)
      : timeline_(std::move(timeline)), start_(std::move(start)), end_(std::move(end)) {}

  void wait() override { require_cuda(cudaEventSynchronize(end_.get()), "a copy between memories"); }
  void precede(StreamHandle stream) override {
    require_cuda(cudaStreamWaitEvent(static_cast<cudaStream_t>(stream), end_.get(), 0),
                 "cudaStreamWaitEvent");
  }
  [[nodiscard]] bool done() const override { return cudaEventQuery(end_.get()) != cudaErrorNotReady; }
  [[nodiscard]] DeviceTimeline::Clock::time_point started() const override {
    return timeline_->time_of(start_);
  }
  [[nodiscard]] DeviceTimeline::Clock::time_point ended() const override { return timeline_->time_of(end_); }

 private:
  std::shared_ptr<DeviceTimeline> timeline_;
  CudaEvent start_, end_;
};

class CudaCopies final : public DeviceCopies {
 public:
  CudaCopies() : devices_(count_cuda_devices("")) {}

  [[nodiscard]] int devices() const override { return devices_; }
  [[nodiscard]] std::string name(int device) const override { return cuda_device_name(device); }

  bool reaches(int from, int to) override {
    if (from == to || reached_.contains({from, to})) return true;
    int possible = 0;
    require_cuda(cudaDeviceCanAccessPeer(&possible, from, to), "cudaDeviceCanAccessPeer");
    if (possible == 0) return false;
    enter(from);
    const cudaError_t status = cudaDeviceEnablePeerAccess(to, 0);
    if (status == cudaErrorPeerAccessAlreadyEnabled)
      static_cast<void>(cudaGetLastError());  // which else the next call of a kernel would report
    else
      require_cuda(status, "cudaDeviceEnablePeerAccess");
    reached_.emplace(from, to);
    return true;
  }

  std::shared_ptr<void> host_memory(std::size_t bytes, bool pinned) override {
    if (!pinned) {
      const auto owner = std::make_shared<std::vector<unsigned char>>(bytes);
      return {owner, owner->data()};
    }
    void* memory = nullptr;
    require_cuda(cudaHostAlloc(&memory, bytes, cudaHostAllocDefault), "cudaHostAlloc");
    return {memory, [](void* place) { static_cast<void>(cudaFreeHost(place)); }};
  }
  std::shared_ptr<void> device_memory(int device, std::size_t bytes) override {
    enter(device);
    void* memory = nullptr;
    require_cuda(cudaMalloc(&memory, bytes), "cudaMalloc");
    return {memory, [](void* place) { static_cast<void>(cudaFree(place)); }};
  }

  // Memory has one address space: the driver sees from an address whose it is.
  void copy_now(void* to, const void* from, std::size_t bytes) override {
    require_cuda(cudaMemcpy(to, from, bytes, cudaMemcpyDefault), "cudaMemcpy");
  }
  void enqueue(std::size_t stream, void* to, const void* from, std::size_t bytes) override {
    require_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, entered(stream)), "cudaMemcpyAsync");
  }
  WorkPtr copy(std::size_t stream, void* to, const void* from, std::size_t bytes) override {
    const cudaStream_t on = entered(stream);
    const CudaEvent start = record_cuda_event(on);
    enqueue(stream, to, from, bytes);
    return std::make_shared<CudaCopy>(timelines_.at(streams_[stream].device), start, record_cuda_event(on));
  }

  std::size_t make_stream(int device) override {
    enter(device);
    streams_.push_back({device, make_cuda_stream()});
    if (std::shared_ptr<DeviceTimeline>& timeline = timelines_[device]; timeline == nullptr)
      timeline = std::make_shared<DeviceTimeline>(streams_.back().stream.get());
    return streams_.size() - 1;
  }
  [[nodiscard]] StreamHandle handle(std::size_t stream) const override {
    return streams_.at(stream).stream.get();
  }
  void drain(std::size_t stream) override {
    require_cuda(cudaStreamSynchronize(entered(stream)), "a copy between memories");
  }
  void restart_clock() override {
    for (std::size_t i = 0; i < streams_.size(); ++i) {
      drain(i);
      timelines_.at(streams_[i].device)->restart(streams_[i].stream.get());
    }
  }

 private:
  struct CopyStream {
    int device = 0;
    CudaStream stream;
  };
  cudaStream_t entered(std::size_t stream) {
    enter(streams_.at(stream).device);
    return streams_[stream].stream.get();
  }

  int devices_;
  std::set<std::pair<int, int>> reached_;
  std::vector<CopyStream> streams_;
  /// By device: only events of one have a distance.
  std::map<int, std::shared_ptr<DeviceTimeline>> timelines_;
};

const Registration<DeviceLibrary> kCuda{
    device_libraries(),
    "cuda",
    {.open = [](int number) { return std::make_unique<ComputeStream>(number); },
     .make_copies = [] { return std::make_unique<CudaCopies>(); },
     .library = cuda_version()}};

}  // namespace
}  // namespace stepcast
