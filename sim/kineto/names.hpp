#pragma once

#include <cstdint>
#include <string>

namespace stepcast {

/// What a name of an event means (names of PyTorch 1.13 to 2.15).
enum class NameKind : std::uint8_t {
  kOther,
  kStep,         ///< `ProfilerStep#3`
  kOptimizer,    ///< `Optimizer.step#SGD.step`
  kZeroGrad,     ///< `Optimizer.zero_grad#SGD.zero_grad`
  kInput,        ///< `enumerate(DataLoader)#...`
  kCollective,   ///< a call of a collective
  kCopies,       ///< copies of DDP's buckets and FSDP's units
  kNode,         ///< `autograd::engine::evaluate_function: ...`
  kAccumulate,   ///< `torch::autograd::AccumulateGrad`
  kLoss,         ///< `aten::cross_entropy_loss`
  kReplica,      ///< `DistributedDataParallel.forward`
  kScript,       ///< `forward` of TorchScript, around its operations
  kModule,       ///< `nn.Module: Conv2d_0`
  kUnitForward,  ///< `FSDP::pre_forward (blocks.0)`, which begins a unit
  kUnitEnd,      ///< `FSDP::post_forward (blocks.0)`
  kBlocking,     ///< `cudaStreamSynchronize`
};

NameKind name_kind(const std::string& name);

/// Kind of a collective's kernel: `all_reduce`, `collective` if its name does not contain it; "" for other
/// kernels. NCCL and RCCL, MSCCL, and PyTorch's and vLLM's own kernels over NVLink.
std::string collective_kernel(const std::string& name);

/// Kind by the name of a call: `allreduce`, `nccl:all_reduce`, `c10d::allreduce_`; "" for barriers and waits.
std::string collective_kind(const std::string& call);

/// Dtype of a tensor as precisions name it: `float`, `Float`, `c10::BFloat16`; "" for others.
std::string precision_dtype(const std::string& type);
/// Bytes of an element; 0: unknown.
double element_bytes(const std::string& type);

}  // namespace stepcast
