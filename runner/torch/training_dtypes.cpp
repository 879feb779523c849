#include "runner/torch/training_dtypes.hpp"

#include <torch/version.h>

#include <map>

#include "core/error.hpp"
#include "runner/engine/torch_engine.hpp"

#ifdef STEPCAST_TORCH_CUDA
#include <ATen/cuda/CUDAContextLight.h>
#include <c10/cuda/CUDACachingAllocator.h>
#endif

namespace stepcast {

TrainingDtypes TrainingDtypes::of(const Precision& precision, const DeviceStream* stream) {
  static const std::map<std::string, torch::ScalarType> kTypes{
      {"fp32", torch::kFloat32}, {"bf16", torch::kBFloat16}, {"fp16", torch::kFloat16}};
  require_trained(precision, stream != nullptr);
  TrainingDtypes dtypes(kTypes.at(precision.parameters));
  dtypes.reduced = kTypes.at(precision.reduction);
  dtypes.master = precision.master != "none";
  if (stream != nullptr) dtypes.device = torch::Device(stream->torch_name());
  return dtypes;
}

at::Generator TrainingDtypes::generator(unsigned seed) const {
  if (device.is_cpu()) return at::make_generator<at::CPUGeneratorImpl>(seed);
  at::Generator own = at::globalContext().defaultGenerator(device).clone();
  own.set_current_seed(seed);
  return own;
}

torch::Tensor state_of(at::Generator generator) {
  const MemoryScope host(std::nullopt);  // as the state of a GPU's generator
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

void from_state(at::Generator generator, const torch::Tensor& state, const std::function<void()>& action) {
  const auto set = [&](const torch::Tensor& to) {
    const std::lock_guard lock(generator.mutex());
    generator.set_state(to);
  };
  const torch::Tensor now = state_of(generator);
  set(state);
  action();
  set(now);
}

void set_matmul_precision(const Precision& precision, const DeviceStream* stream) {
  if (stream == nullptr || torch::Device(stream->torch_name()).is_cpu()) return;
  if (!torch::cuda::is_available())
    throw CapabilityError(std::string("--device cuda: the LibTorch here, ") + TORCH_VERSION +
                          ", drives no GPU of this machine");
  at::globalContext().setAllowTF32CuBLAS(precision.compute == "tf32");
  at::globalContext().setAllowTF32CuDNN(precision.compute == "tf32");
}

std::function<void()> prepare_product(const Precision& precision, int edge, DeviceStream& device) {
  set_matmul_precision(precision, &device);
  const torch::TensorOptions options = TrainingDtypes::of(precision, &device).options();
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
  return device.is_cpu() ? total(memory_account().live()) : static_cast<double>(bytes_on(device).current);
}
double peak_tensor_bytes(torch::Device device) {
  return device.is_cpu() ? total(memory_account().peak()) : static_cast<double>(bytes_on(device).peak);
}
void forget_tensor_peak(torch::Device device) {
  if (device.is_cpu()) return memory_account().forget_peak();
  c10::cuda::CUDACachingAllocator::resetPeakStats(device.index());
}
double free_workspaces(torch::Device device) {
  if (device.is_cpu()) return 0.0;
  const double before = live_tensor_bytes(device);
  at::cuda::clearCublasWorkspaces();
  return before - live_tensor_bytes(device);
}
#else
double live_tensor_bytes(torch::Device /*device*/) { return total(memory_account().live()); }
double peak_tensor_bytes(torch::Device /*device*/) { return total(memory_account().peak()); }
void forget_tensor_peak(torch::Device /*device*/) { memory_account().forget_peak(); }
double free_workspaces(torch::Device /*device*/) { return 0.0; }
#endif

}  // namespace stepcast
