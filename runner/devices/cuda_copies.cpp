#include <cuda_runtime_api.h>

#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "runner/cuda/cuda_queue.hpp"
#include "runner/measure/copy_bench.hpp"

namespace stepcast {
namespace {

struct FreeDevice {
  void operator()(void* memory) const { static_cast<void>(cudaFree(memory)); }
};
struct FreePinned {
  void operator()(void* memory) const { static_cast<void>(cudaFreeHost(memory)); }
};
using DeviceMemory = std::unique_ptr<void, FreeDevice>;
using PinnedMemory = std::unique_ptr<void, FreePinned>;

DeviceMemory device_memory(int device, std::size_t bytes) {
  require_cuda(cudaSetDevice(device), "cudaSetDevice");
  void* memory = nullptr;
  require_cuda(cudaMalloc(&memory, bytes), "cudaMalloc");
  return DeviceMemory(memory);
}

std::vector<unsigned char> pattern(std::size_t bytes) {
  constexpr std::size_t kPeriod = 251;  // a prime: shifted data differ
  std::vector<unsigned char> result(bytes);
  for (std::size_t i = 0; i < bytes; ++i) result[i] = static_cast<unsigned char>(1 + i % kPeriod);
  return result;
}

int device_count() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess || count == 0)
    throw CapabilityError(std::string("this machine has no GPU that CUDA finds") +
                          (status == cudaSuccess ? "" : std::string(": ") + cudaGetErrorString(status)));
  return count;
}

/// Copies of one GPU, and to the next one where there are several.
class CudaCopies : public CopyEngine {
 public:
  CudaCopies(int device, std::size_t largest) : device_(device), pageable_(largest) {
    const int count = device_count();
    if (device < 0 || device >= count)
      throw UsageError("--gpu " + std::to_string(device) + ": there are " + std::to_string(count) +
                       ", numbered from 0");
    memory_ = device_memory(device_, largest);
    if (count > 1) {
      peer_ = (device + 1) % count;
      peer_memory_ = device_memory(peer_, largest);
    }
    require_cuda(cudaSetDevice(device_), "cudaSetDevice");
    enable_peer();
    void* pinned = nullptr;
    require_cuda(cudaHostAlloc(&pinned, largest, cudaHostAllocDefault), "cudaHostAlloc");
    pinned_.reset(pinned);
    cudaStream_t stream = nullptr;
    require_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    stream_.reset(stream);
  }

  [[nodiscard]] std::vector<std::string> kinds() const override {
    std::vector<std::string> result{"copy_h2d_pinned", "copy_h2d_pageable", "copy_d2h_pinned",
                                    "copy_d2h_pageable"};
    if (peer_memory_) result.emplace_back("copy_p2p");
    return result;
  }

  [[nodiscard]] std::string device() const override {
    cudaDeviceProp properties{};
    require_cuda(cudaGetDeviceProperties(&properties, device_), "cudaGetDeviceProperties");
    return "gpu" + std::to_string(device_) + " " + static_cast<const char*>(properties.name);
  }

  [[nodiscard]] std::vector<std::string> warnings() const override { return warnings_; }

  void copy(const std::string& kind, std::size_t bytes, int times) override {
    const Ends ends = ends_of(kind);
    for (int i = 0; i < times; ++i) issue(ends, bytes);
    require_cuda(cudaStreamSynchronize(stream_.get()), kind.c_str());
  }

  long long check(const std::string& kind, std::size_t bytes) override {
    const Ends ends = ends_of(kind);
    const std::vector<unsigned char> sent = pattern(bytes);
    std::vector<unsigned char> arrived(bytes);
    // Memory has one address space: the driver sees from an address whose it is.
    require_cuda(cudaMemcpy(ends.from, sent.data(), bytes, cudaMemcpyDefault), "cudaMemcpy");
    require_cuda(cudaMemcpy(ends.to, arrived.data(), bytes, cudaMemcpyDefault), "cudaMemcpy");
    copy(kind, bytes, 1);
    require_cuda(cudaMemcpy(arrived.data(), ends.to, bytes, cudaMemcpyDefault), "cudaMemcpy");
    long long wrong = 0;
    for (std::size_t i = 0; i < bytes; ++i) wrong += arrived[i] == sent[i] ? 0 : 1;
    return wrong;
  }

 private:
  struct Ends {
    void* from = nullptr;
    void* to = nullptr;
    bool peers = false;
  };

  [[nodiscard]] Ends ends_of(const std::string& kind) {
    if (kind == "copy_h2d_pinned") return {pinned_.get(), memory_.get()};
    if (kind == "copy_h2d_pageable") return {pageable_.data(), memory_.get()};
    if (kind == "copy_d2h_pinned") return {memory_.get(), pinned_.get()};
    if (kind == "copy_d2h_pageable") return {memory_.get(), pageable_.data()};
    return {memory_.get(), peer_memory_.get(), true};
  }

  void issue(const Ends& ends, std::size_t bytes) {
    if (ends.peers)
      require_cuda(cudaMemcpyPeerAsync(ends.to, peer_, ends.from, device_, bytes, stream_.get()),
                   "cudaMemcpyPeerAsync");
    else
      require_cuda(cudaMemcpyAsync(ends.to, ends.from, bytes, cudaMemcpyDefault, stream_.get()),
                   "cudaMemcpyAsync");
  }

  /// Without it the driver stages copies between two GPUs in host memory.
  void enable_peer() {
    if (!peer_memory_) return;
    int possible = 0;
    require_cuda(cudaDeviceCanAccessPeer(&possible, device_, peer_), "cudaDeviceCanAccessPeer");
    if (possible != 0)
      return require_cuda(cudaDeviceEnablePeerAccess(peer_, 0), "cudaDeviceEnablePeerAccess");
    warnings_.push_back("gpu" + std::to_string(device_) + " cannot reach gpu" + std::to_string(peer_) +
                        " directly: copy_p2p goes through host memory");
  }

  const int device_;
  int peer_ = -1;
  DeviceMemory memory_, peer_memory_;
  PinnedMemory pinned_;
  std::vector<unsigned char> pageable_;
  CudaStream stream_;
  std::vector<std::string> warnings_;
};

const Registration<CopyEngineFactory> kCuda{
    copy_engines(),
    {.name = "cuda",
     .description = "NVIDIA GPUs by the CUDA runtime",
     .thing = {.make = [](int device, std::size_t largest) -> std::unique_ptr<CopyEngine> {
                 return std::make_unique<CudaCopies>(device, largest);
               },
               .library = cuda_version()}}};

}  // namespace
}  // namespace stepcast
