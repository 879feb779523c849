#include <map>
#include <set>
#include <utility>
#include <vector>

#include "runner/cuda/device_timeline.hpp"
#include "runner/execute/device_copies.hpp"

namespace stepcast {
namespace {

void enter(int device) { require_cuda(cudaSetDevice(device), "cudaSetDevice"); }

/// Of one device. Events are kept from one restart to the next.
struct CopyQueue {
  int device = 0;
  CudaStream stream;
  std::vector<CudaEvent> events;
  std::size_t marks = 0;
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
  void copy(std::size_t queue, void* to, const void* from, std::size_t bytes) override {
    CopyQueue& on = entered(queue);
    require_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, on.stream.get()), "cudaMemcpyAsync");
  }

  std::size_t make_queue(int device) override {
    enter(device);
    queues_.push_back({device, make_cuda_stream(), {}, 0});
    timelines_.try_emplace(device, queues_.back().stream.get());
    return queues_.size() - 1;
  }
  Mark mark(std::size_t queue) override {
    CopyQueue& on = entered(queue);
    if (on.marks == on.events.size())
      on.events.push_back(record_cuda_event(on.stream.get()));
    else
      require_cuda(cudaEventRecord(on.events[on.marks].get(), on.stream.get()), "cudaEventRecord");
    return {queue, on.marks++};
  }
  void follow(std::size_t queue, const Mark& mark) override {
    require_cuda(cudaStreamWaitEvent(entered(queue).stream.get(), event_of(mark).get(), 0),
                 "cudaStreamWaitEvent");
  }
  void wait(const Mark& mark) override {
    require_cuda(cudaEventSynchronize(event_of(mark).get()), "a copy between memories");
  }

  void drain(std::size_t queue) override {
    require_cuda(cudaStreamSynchronize(entered(queue).stream.get()), "a copy between memories");
  }

  void restart() override {
    std::set<int> compared;
    for (std::size_t i = 0; i < queues_.size(); ++i) {
      drain(i);
      CopyQueue& queue = queues_[i];
      queue.marks = 0;
      if (compared.insert(queue.device).second) timelines_.at(queue.device).restart(queue.stream.get());
    }
  }
  Clock::time_point passed(const Mark& mark) override {
    return timelines_.at(entered(mark.queue).device).time_of(event_of(mark));
  }

 private:
  CopyQueue& entered(std::size_t queue) {
    enter(queues_.at(queue).device);
    return queues_[queue];
  }
  [[nodiscard]] const CudaEvent& event_of(const Mark& mark) const {
    return queues_.at(mark.queue).events.at(mark.number);
  }

  int devices_;
  std::set<std::pair<int, int>> reached_;
  std::vector<CopyQueue> queues_;
  std::map<int, DeviceTimeline> timelines_;  ///< by device: only events of one have a distance
};

const Registration<DeviceCopiesFactory> kCudaCopies{
    device_copies(),
    {.name = "cuda",
     .description = "NVIDIA GPUs by the CUDA runtime",
     .value = {.make = [] { return std::unique_ptr<DeviceCopies>(std::make_unique<CudaCopies>()); },
               .library = cuda_version()}}};

}  // namespace
}  // namespace stepcast
