#pragma once

#include <ATen/core/Generator.h>
#include <torch/torch.h>

#include <functional>

#include "models/precision.hpp"
#include "runner/execute/device_queue.hpp"
#include "runner/execute/memory_account.hpp"

/// Where a model is and in which numbers it is trained.
namespace stepcast {

struct Numbers {
  Numbers(torch::ScalarType type = torch::kFloat32)  // NOLINT: a dtype is one of its forms
      : dtype(type), reduced(type) {}

  /// How a policy is trained: parameters, gradients and activations are in one dtype; of bf16 and fp16 the optimizer
  /// updates float32 copies, with float32 states, from gradients that become float32 segment by segment, and writes
  /// parameters anew. The loss is float32. Products of float32 use tensor cores for tf32 and not for fp32. fp16 is trained
  /// without scaling the loss, whose small gradients become 0; steps take as long. \param queue null: this host computes
  /// \throws CapabilityError, see require_trained()
  static Numbers of(const Precision& precision, const DeviceQueue* queue);

  [[nodiscard]] torch::TensorOptions options() const { return torch::TensorOptions(dtype).device(device); }
  /// What random numbers are drawn from: the device's own, whose numbers are others than the host's.
  [[nodiscard]] at::Generator generator(unsigned seed) const;

  torch::ScalarType dtype;
  torch::ScalarType reduced;  ///< gradients between ranks, and FSDP's shards of them
  bool master = false;        ///< the optimizer has float32 copies
  torch::Device device = torch::kCPU;
};

/// Where a generator, from which several threads may draw, stands.
torch::Tensor state_of(at::Generator generator);

/// Does something again that began when the generator stood there; then the generator goes on from where it stands now.
void from_state(at::Generator generator, const torch::Tensor& state, const std::function<void()>& action);

/// Makes LibTorch multiply so. \throws CapabilityError when this LibTorch drives no GPUs
void set_matmul_precision(const Precision& precision, const DeviceQueue* queue);

/// Bytes of tensors on a device now, or at most since forget_tensor_peak(): of a GPU what LibTorch's caching allocator has
/// given out, in blocks of 512 bytes; of this host as memory_account.hpp counts them.
double live_tensor_bytes(torch::Device device);
double peak_tensor_bytes(torch::Device device);
void forget_tensor_peak(torch::Device device);

}  // namespace stepcast
