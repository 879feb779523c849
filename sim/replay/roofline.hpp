#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/model.hpp"
#include "topologies/devices.hpp"

/// What the layers of a model cost on a device at least, from flop, bytes and kernels alone.
///
///     time of a layer = max(flop / peak, bytes / memory bandwidth)
///     time of a phase = max(sum over its layers, kernels * kernel_launch)
///
/// Williams, Waterman, Patterson, "Roofline", CACM 52, 2009. The second line is a host that launches kernel
/// after kernel: where the device is faster than that, it waits for the next one. Left out: caches (a small
/// layer's activations may never reach memory), kernels too small to fill the device.
namespace stepcast {

/// What a processor computes and moves per second.
struct DeviceRates {
  FlopPerSecond peak;
  BytesPerSecond memory;
  Seconds kernel_launch{0};  ///< 0 of a CPU
};

/// A GPU's as its data sheet says; of a CPU the part that `threads` of its cores are, of its memory bandwidth
/// too (one thread alone often draws more). \throws InputError that lists the device's dtypes when it lacks
/// this one
DeviceRates rates_of(const DeviceModel& device, const std::string& dtype, int threads);

/// A phase of a segment, or of the step.
enum class WorkPhase : std::uint8_t { kForward, kBackward, kZeroGrad, kOptimizer, kLoss };

/// Sum of the rooflines of the layers, without launches. `segment` is -1 for the loss.
///
/// Zeroing writes gradients once; the optimizer makes `Optimizer::update_accesses` to the bytes of the
/// parameters. The loss reads and writes the model's output three times each, forward and backward
/// together.
Seconds roofline_time(const Model& model, int segment, WorkPhase phase, double samples,
                      const DeviceRates& rates);

/// Kernels that the phase launches: one per forward layer, two per layer with weights in the backward (dx and
/// dw), one per parameter tensor in the optimizer (between a loop over tensors, which launches several for
/// each, and multi-tensor kernels), four for the loss. Zeroing: none, as gradients are freed, or one kernel
/// fills them all.
int kernels_of(const Model& model, int segment, WorkPhase phase);

}  // namespace stepcast
