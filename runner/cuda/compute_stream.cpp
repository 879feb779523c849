#include <array>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "runner/cuda/cuda_runtime.hpp"
#include "runner/execute/device_stream.hpp"

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

const Registration<DeviceStreamFactory> kCuda{
    device_streams(),
    {.name = "cuda", .value = [](int number) { return std::make_unique<ComputeStream>(number); }}};

}  // namespace
}  // namespace stepcast
