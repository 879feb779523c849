#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "tests/nccl/stand_in.hpp"

namespace stepcast::stand_in {
namespace {

using Clock = std::chrono::steady_clock;

std::atomic<int> devices{8};
std::atomic<int> things{0};
thread_local int device = 0;

std::map<int, std::string> names;
std::atomic<bool> peers{true};
std::mutex copies_mutex;  // of the next four
std::chrono::milliseconds copy_time{0};
std::vector<DoneCopy> copies;
std::map<const char*, std::size_t> host_memory;  // pinned
std::map<const char*, std::size_t> device_memory;

bool lies_in(const std::map<const char*, std::size_t>& memory, const void* place) {
  const auto* at = static_cast<const char*>(place);
  const auto next = memory.upper_bound(at);
  return next != memory.begin() && at < std::prev(next)->first + std::prev(next)->second;
}

/// One passage of an event.
struct Mark {
  std::mutex mutex;
  std::condition_variable changed;
  bool passed = false;
  Clock::time_point at;

  void pass() {
    const std::scoped_lock lock(mutex);
    at = Clock::now();
    passed = true;
    changed.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [this] { return passed; });
  }
  bool has_passed() {
    const std::scoped_lock lock(mutex);
    return passed;
  }
};

class Queue {
 public:
  const int device = stand_in::device;

  Queue() {
    std::thread([state = state_] { state->serve(); }).detach();
  }
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;
  /// As cudaStreamDestroy: what is queued still runs.
  ~Queue() {
    const std::scoped_lock lock(state_->mutex);
    state_->stopping = true;
    state_->changed.notify_all();
  }
  void push(std::function<void()> task) {
    const std::scoped_lock lock(state_->mutex);
    state_->tasks.push_back(std::move(task));
    state_->changed.notify_all();
  }
  bool idle() {
    const std::scoped_lock lock(state_->mutex);
    return state_->tasks.empty() && !state_->running;
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::function<void()>> tasks;
    bool running = false;
    bool stopping = false;

    void serve() {
      std::unique_lock lock(mutex);
      while (true) {
        changed.wait(lock, [this] { return stopping || !tasks.empty(); });
        if (tasks.empty()) return;
        const std::function<void()> task = std::move(tasks.front());
        tasks.pop_front();
        running = true;
        lock.unlock();
        task();
        lock.lock();
        running = false;
      }
    }
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

struct Event {
  const int device = stand_in::device;
  std::mutex mutex;
  std::shared_ptr<Mark> mark;

  std::shared_ptr<Mark> now() {
    const std::scoped_lock lock(mutex);
    return mark;
  }
};

Queue& queue_of(cudaStream_t stream) {
  static std::mutex mutex;
  static std::map<int, Queue> default_queues;
  if (stream != nullptr) return *reinterpret_cast<Queue*>(stream);
  const std::scoped_lock lock(mutex);
  return default_queues[device];
}

Event& event_of(cudaEvent_t event) { return *reinterpret_cast<Event*>(event); }

/// Runs on the default stream, to its end.
void run_in_order(std::function<void()> task) {
  const auto mark = std::make_shared<Mark>();
  queue_of(nullptr).push([mark, task = std::move(task)] {
    task();
    mark->pass();
  });
  mark->wait();
}

}  // namespace

void set_devices(int count) { devices = count; }
void name_device(int device, const std::string& name) { names[device] = name; }
std::string name_of(int device) {
  const auto known = names.find(device);
  return known == names.end() || known->second.empty() ? "a GPU of the stand-in" : known->second;
}
void set_peers(bool reach) { peers = reach; }
void slow_copies(std::chrono::milliseconds each) {
  const std::scoped_lock lock(copies_mutex);
  copy_time = each;
  copies.clear();
}
std::vector<DoneCopy> done_copies() {
  const std::scoped_lock lock(copies_mutex);
  return copies;
}
void launch(cudaStream_t stream, std::function<void()> kernel) { queue_of(stream).push(std::move(kernel)); }
void count_thing(int more) { things += more; }
int current_device() { return device; }
int alive() { return things; }

}  // namespace stepcast::stand_in

namespace here = stepcast::stand_in;

extern "C" {

const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorNoDevice ? "no CUDA-capable device is detected" : "an error of the stand-in";
}
cudaError_t cudaGetDeviceCount(int* count) {
  *count = here::devices;
  return *count == 0 ? cudaErrorNoDevice : cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  *properties = {};
  std::strcpy(static_cast<char*>(properties->name), here::name_of(device).c_str());
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int /*device*/) {
  std::strncpy(text, "0000:01:00.0", static_cast<std::size_t>(length));
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= here::devices) return cudaErrorInvalidDevice;
  here::device = device;
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int /*flags*/) {
  *stream = reinterpret_cast<cudaStream_t>(new here::Queue());
  here::count_thing(1);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete reinterpret_cast<here::Queue*>(stream);
  here::count_thing(-1);
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const auto mark = std::make_shared<here::Mark>();
  here::launch(stream, [mark] { mark->pass(); });
  mark->wait();
  return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  here::launch(stream, [=] { function(data); });
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return here::queue_of(stream).idle() ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int /*flags*/) {
  if (const auto mark = here::event_of(event).now()) here::launch(stream, [mark] { mark->wait(); });
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int /*flags*/) {
  *event = reinterpret_cast<cudaEvent_t>(new here::Event());
  here::count_thing(1);
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete reinterpret_cast<here::Event*>(event);
  here::count_thing(-1);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (here::event_of(event).device != here::queue_of(stream).device) return cudaErrorInvalidResourceHandle;
  const auto mark = std::make_shared<here::Mark>();
  {
    here::Event& recorded = here::event_of(event);
    const std::scoped_lock lock(recorded.mutex);
    recorded.mark = mark;
  }
  here::launch(stream, [mark] { mark->pass(); });
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  const auto mark = here::event_of(event).now();
  return mark == nullptr || mark->has_passed() ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (const auto mark = here::event_of(event).now()) mark->wait();
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  const auto from = here::event_of(start).now();
  const auto to = here::event_of(end).now();
  if (here::event_of(start).device != here::event_of(end).device) return cudaErrorInvalidResourceHandle;
  if (from == nullptr || to == nullptr) return cudaErrorInvalidResourceHandle;
  if (!from->has_passed() || !to->has_passed()) return cudaErrorNotReady;
  *milliseconds = std::chrono::duration<float, std::milli>(to->at - from->at).count();
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  *memory = std::malloc(bytes);
  here::count_thing(1);
  const std::scoped_lock lock(here::copies_mutex);
  here::device_memory[static_cast<const char*>(*memory)] = bytes;
  return cudaSuccess;
}
cudaError_t cudaFree(void* memory) {
  {
    const std::scoped_lock lock(here::copies_mutex);
    here::device_memory.erase(static_cast<const char*>(memory));
  }
  std::free(memory);
  here::count_thing(-1);
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** memory, std::size_t bytes, unsigned int /*flags*/) {
  *memory = std::malloc(bytes);
  here::count_thing(1);
  const std::scoped_lock lock(here::copies_mutex);
  here::host_memory[static_cast<const char*>(*memory)] = bytes;
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* memory) {
  {
    const std::scoped_lock lock(here::copies_mutex);
    here::host_memory.erase(static_cast<const char*>(memory));
  }
  std::free(memory);
  here::count_thing(-1);
  return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  *can = here::peers && device != peer ? 1 : 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned int /*flags*/) {
  return peer == here::device ? cudaErrorInvalidDevice : cudaSuccess;
}
cudaError_t cudaGetLastError() { return cudaSuccess; }

/// Of memory that is neither a device's nor pinned, the host waits until it is done: the driver stages it.
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  if (kind != cudaMemcpyDefault) return cudaErrorInvalidMemcpyDirection;
  bool blocks = false;
  std::chrono::milliseconds time{0};
  {
    const std::scoped_lock lock(here::copies_mutex);
    time = here::copy_time;
    for (const void* end : {static_cast<const void*>(to), from})
      blocks = blocks || !(here::lies_in(here::device_memory, end) || here::lies_in(here::host_memory, end));
  }
  here::launch(stream, [=, device = here::queue_of(stream).device] {
    const auto start = here::Clock::now();
    std::this_thread::sleep_for(time);
    if (bytes != 0) std::memcpy(to, from, bytes);
    const std::scoped_lock lock(here::copies_mutex);
    here::copies.push_back({to, from, bytes, device, start, here::Clock::now(), blocks});
  });
  return blocks ? cudaStreamSynchronize(stream) : cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind /*kind*/) {
  here::run_in_order([=] {
    if (bytes != 0) std::memcpy(to, from, bytes);
  });
  return cudaSuccess;
}
cudaError_t cudaMemset(void* memory, int value, std::size_t bytes) {
  here::run_in_order([=] {
    if (bytes != 0) std::memset(memory, value, bytes);
  });
  return cudaSuccess;
}

}  // extern "C"
