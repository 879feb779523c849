#pragma once

#include <ATen/core/Generator.h>
#include <torch/torch.h>

#include <functional>

#include "models/precision.hpp"
#include "runner/execute/device_stream.hpp"
#include "runner/execute/memory_account.hpp"

/// Device and dtypes of training.
namespace stepcast {

struct TrainingDtypes {
  TrainingDtypes(torch::ScalarType type = torch::kFloat32)  // NOLINT: a dtype is one of its forms
      : dtype(type), reduced(type) {}

  /// Dtypes of a precision: parameters, gradients and activations have one dtype. In bf16 and fp16 the
  /// optimizer updates float32 copies with float32 states, converts gradients to float32 segment by segment,
  /// and writes the parameters back. The loss is float32. GEMMs of float32 use tensor cores for tf32 and not
  /// for fp32. fp16 is trained without loss scaling: small gradients become 0, the step time is the same.
  /// \param stream null: the CPU computes \throws CapabilityError, see require_trained()
  static TrainingDtypes of(const Precision& precision, const DeviceStream* stream);

  [[nodiscard]] torch::TensorOptions options() const { return torch::TensorOptions(dtype).device(device); }
  /// Random number generator of the device; its numbers differ from those of the CPU.
  [[nodiscard]] at::Generator generator(unsigned seed) const;

  torch::ScalarType dtype;
  torch::ScalarType reduced;  ///< gradients between ranks, and FSDP's shards of them
  bool master = false;        ///< the optimizer has float32 copies
  torch::Device device = torch::kCPU;
};

/// State of a generator that several threads may draw from.
torch::Tensor state_of(at::Generator generator);

/// Repeats an action from an earlier state of the generator, then restores the current state.
void from_state(at::Generator generator, const torch::Tensor& state, const std::function<void()>& action);

/// Sets the precision of GEMMs in LibTorch. \throws CapabilityError if this LibTorch drives no GPUs
void set_matmul_precision(const Precision& precision, const DeviceStream* stream);

/// Bytes of tensors on a device now, and at most since forget_tensor_peak(). For a GPU those that LibTorch's
/// caching allocator gave out, in blocks of 512 bytes; for the CPU those of memory_account().
double live_tensor_bytes(torch::Device device);
double peak_tensor_bytes(torch::Device device);
void forget_tensor_peak(torch::Device device);
/// Frees the workspaces that cuBLAS holds per thread and stream, and returns their bytes; 0 for the CPU.
double free_workspaces(torch::Device device);

}  // namespace stepcast
