#pragma once

#include <string>

namespace stepcast {

/// Arrays that a rank holds in memory of its host instead of the device's, pinned: value of --offload.
///
/// `activations`: a block's saved tensors leave after its forward, or with recomputation the input of its
/// unit, and return while the backward before theirs runs. Two blocks are on the device at a time; a third
/// forward waits for the first copy (as TransformerEngine's and torchao's offloading with streams do).
///
/// `optimizer`: states and master copy. After the last reduction gradients go to the host, which updates the
/// parameters and sends them back, as Megatron's HybridDeviceOptimizer and ZeRO-Offload (Ren et al., 2021).
/// See Layout::sends_gradients() for those that go after each reduction.
///
/// `parameters`: of FSDP the shards, too (CPUOffloadPolicy): every all-gather waits for the shard, reduced
/// gradients go to the host at once, which updates. `parameters=compute` (DeepSpeed's ZeRO 3): the host also
/// holds shards in the precision of compute, which return instead of the master copy.
struct Offload {
  int blocks = 0;            ///< blocks or units of a rank whose activations leave, its first ones
  double activations = 0.0;  ///< the same as a share of the rank's
  double optimizer = 0.0;    ///< share of the parameters that the host updates
  bool parameters = false;
  bool computed = false;  ///< their shards return in the precision of compute, beside the master copy
  bool operator==(const Offload&) const = default;
  [[nodiscard]] bool has_activations() const { return blocks > 0 || activations > 0.0; }

  /// Number of the first units that leave, of `count`. \throws UsageError if there are fewer
  [[nodiscard]] int units(int count) const;
};

/// `activations`, `activations=8`, `activations=0.5+optimizer=0.5`, `parameters`,
/// `parameters=compute`; `none`.
/// \throws UsageError for anything else
Offload parse_offload(const std::string& text);
std::string to_text(const Offload& offload);

}  // namespace stepcast
