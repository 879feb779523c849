#include "runner/torch/numbers.hpp"

#include <torch/version.h>

#include <map>

#include "core/error.hpp"
#include "runner/engine/torch_engine.hpp"
#include "runner/torch/engine.hpp"

#ifdef STEPCAST_TORCH_CUDA
#include <c10/cuda/CUDACachingAllocator.h>
#endif

namespace stepcast {

Numbers Numbers::of(const Precision& precision, const DeviceQueue* queue) {
  static const std::map<std::string, torch::ScalarType> kTypes{
      {"fp32", torch::kFloat32}, {"bf16", torch::kBFloat16}, {"fp16", torch::kFloat16}};
  require_trained(precision, queue != nullptr);
  Numbers numbers(kTypes.at(precision.parameters));
  numbers.reduced = kTypes.at(precision.reduction);
  numbers.master = precision.master != "none";
  if (queue != nullptr) numbers.device = torch::Device(queue->torch_name());
  return numbers;
}

at::Generator Numbers::generator(unsigned seed) const {
  if (device.is_cpu()) return at::make_generator<at::CPUGeneratorImpl>(seed);
  at::Generator own = at::globalContext().defaultGenerator(device).clone();
  own.set_current_seed(seed);
  return own;
}

torch::Tensor state_of(at::Generator generator) {
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

void from_state(at::Generator generator, const torch::Tensor& state, const std::function<void()>& action) {
  const auto stand = [&](const torch::Tensor& at) {
    const std::lock_guard lock(generator.mutex());
    generator.set_state(at);
  };
  const torch::Tensor now = state_of(generator);
  stand(state);
  action();
  stand(now);
}

void set_matmul_precision(const Precision& precision, const DeviceQueue* queue) {
  if (queue == nullptr || torch::Device(queue->torch_name()).is_cpu()) return;
  if (!torch::cuda::is_available())
    throw CapabilityError(std::string("--device cuda: the LibTorch here, ") + TORCH_VERSION +
                          ", drives no GPU of this machine");
  at::globalContext().setAllowTF32CuBLAS(precision.compute == "tf32");
  at::globalContext().setAllowTF32CuDNN(precision.compute == "tf32");
}

std::function<void()> prepare_product(const Precision& precision, int edge, DeviceQueue& device) {
  set_matmul_precision(precision, &device);
  const torch::TensorOptions options = Numbers::of(precision, &device).options();
  const auto a = torch::randn({edge, edge}, options), b = torch::randn({edge, edge}, options);
  return [a, b, product = torch::empty({edge, edge}, options)]() mutable {
    const torch::NoGradGuard no_gradients;
    torch::mm_out(product, a, b);
  };
}

#ifdef STEPCAST_TORCH_CUDA
namespace {

/// Over all pools.
auto bytes_on(torch::Device device) {
  return c10::cuda::CUDACachingAllocator::getDeviceStats(device.index()).allocated_bytes[0];
}

}  // namespace

double live_tensor_bytes(torch::Device device) {
  return device.is_cpu() ? total(live_memory()) : static_cast<double>(bytes_on(device).current);
}
double peak_tensor_bytes(torch::Device device) {
  return device.is_cpu() ? total(peak_memory()) : static_cast<double>(bytes_on(device).peak);
}
void forget_tensor_peak(torch::Device device) {
  if (device.is_cpu()) return forget_memory_peak();
  c10::cuda::CUDACachingAllocator::resetPeakStats(device.index());
}
#else
double live_tensor_bytes(torch::Device /*device*/) { return total(live_memory()); }
double peak_tensor_bytes(torch::Device /*device*/) { return total(peak_memory()); }
void forget_tensor_peak(torch::Device /*device*/) { forget_memory_peak(); }
#endif

}  // namespace stepcast
