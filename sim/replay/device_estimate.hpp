#pragma once

#include "models/model.hpp"
#include "records/phase_costs.hpp"
#include "topologies/devices.hpp"

namespace stepcast {

/// Phase costs of one step from the table of layers alone, at the efficiencies of the device.
///
/// - Gradients are ready when the next collective of the model in their segment's backward starts, or at its
///   end; also those whose GEMM hides this collective, which are ready later. Saved bytes are the model's own
///   times the device's `activations`.
/// - Host, input and loading cost nothing. zero_grad costs the check for NaN, and with Transformer Engine one
///   write of the gradients. Otherwise PyTorch 2 frees gradients (set_to_none), and the next backward writes
///   them again.
/// - Launch overhead of a GPU: kernel_launch per kernel, and operation_issue per kernel of the forward and
///   the loss (the framework's own work; autograd runs the backward without it).
/// - CPUs have neither launch overhead nor a memory-bound part.
///
/// \param experts_stay FSDP gathers no experts: each is on one rank of a copy \throws InputError as `moved`
PhaseCosts estimated_costs(const Model& model, const DeviceModel& device, int samples, int threads,
                           bool experts_stay = false);

/// The slowest of `count` devices that differ in their rates: efficiencies of GEMMs and attention over 1 +
/// rate_spread x, with x the median of the largest of `count` standard normals, Phi(x)^count = 1/2 (x = 0 for
/// 1 GPU, 1.38 for 8, 2.78 for 256). Memory bandwidth is taken to be the same for all.
DeviceModel slowest_of(DeviceModel device, int count);

/// True if `process=` replaces what a process holds by default, the workspaces of GEMMs.
bool states_process(const DeviceModel& device);
/// Workspaces of GEMMs: those of PyTorch, and of Transformer Engine one, with experts side by side also one
/// for each of four streams (transformer_engine/pytorch/module/base.py, cpp_extensions/gemm.py).
Bytes process_bytes(const DeviceModel& device, const Model& model);

/// Bytes that a cross entropy of these samples holds; 0 for another loss.
double loss_bytes(const Model& model, int samples);

}  // namespace stepcast
