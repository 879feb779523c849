#pragma once

#include "models/model.hpp"
#include "schedule/schedule.hpp"

/// How much of what devices could compute a training step is.
namespace stepcast {

/// Of one step, over all ranks:
///
///     model      data-parallel batches * sum of the segments' forward and backward
///     hardware   of every rank's operations: the same, forwards that are recomputed, and what flash attention's backward
///                computes again
///
/// divided by (ranks * peak rate of the compute dtype * step time) they are MFU and HFU (Chowdhery et al., "PaLM", 2022,
/// app. B; Korthikanti et al., "Reducing Activation Recomputation", 2023). As Megatron does since core 0.12, causal flash
/// attention counts half of the scores, and looking up embeddings nothing; PaLM's and torchtitan's rules count all of them.
struct StepFlop {
  Flop model, hardware;
};
/// \param batch of a rank
StepFlop step_flop(const Schedule& schedule, const Model& model, int batch);

}  // namespace stepcast
