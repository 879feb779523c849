#include "runner/execute/device_stream.hpp"

#include <algorithm>

#include "core/clocks.hpp"
#include "core/error.hpp"

namespace stepcast {
namespace {

double seconds(DeviceStream::Clock::time_point from, DeviceStream::Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

}  // namespace

Registry<DeviceStreamFactory>& device_streams() {
  static Registry<DeviceStreamFactory> registry("device");
  return registry;
}

bool names_device(const std::string& name) {
  if (name == "cpu") return false;
  if (name != "cuda") throw UsageError("--device: " + unknown_name("device", name, {"cpu", "cuda"}));
  if (device_streams().entries().empty())
    throw CapabilityError(
        "--device cuda: this stepcast-runner was built without CUDA; './dev cuda-build DIR' builds one with "
        "the LibTorch in DIR");
  return true;
}

std::unique_ptr<DeviceStream> open_device(const std::string& name, int number) {
  return names_device(name) ? device_streams().find(name)(number) : nullptr;
}

void StepTimestamps::restart() {
  issued_.clear();
  done_.clear();
  ran_s_.clear();
  if (device_ != nullptr) device_->restart();
}

std::size_t StepTimestamps::record_event() {
  if (device_ != nullptr) device_->record_event();
  issued_.push_back(Clock::now());
  if (counts_processor_) ran_s_.push_back(process_cpu_s());
  return issued_.size() - 1;
}

void StepTimestamps::settle() {
  done_ = issued_;
  if (device_ == nullptr) return;
  device_->drain();
  for (std::size_t i = 0; i < done_.size(); ++i) done_[i] = device_->time_of(i);
}

double StepTimestamps::issued_s(std::size_t from, std::size_t to) const {
  return seconds(issued_[from], issued_[to]);
}
double StepTimestamps::done_s(std::size_t from, std::size_t to) const {
  if (!counts_processor_) return seconds(done_[from], done_[to]);
  double sum_s = 0.0;
  for (std::size_t i = from; i < to; ++i)
    sum_s += std::min(seconds(done_[i], done_[i + 1]), ran_s_[i + 1] - ran_s_[i]);
  return sum_s;
}

}  // namespace stepcast
