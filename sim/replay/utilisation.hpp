#pragma once

#include "models/model.hpp"
#include "schedule/schedule.hpp"

/// Utilisation of the devices' peak rate in a training step.
namespace stepcast {

/// Flop of one step, over all ranks:
///
///     model      data-parallel batches * sum of the segments' forward and backward
///     hardware   of all operations: the same, recomputed forwards, and recomputation in flash attention
///
/// Divided by (ranks * peak rate of the compute dtype * step time) they are MFU and HFU (Chowdhery et al.,
/// "PaLM", 2022, app. B; Korthikanti et al., "Reducing Activation Recomputation", 2023). As in Megatron since
/// core 0.12, causal flash attention counts half of the scores, and looking up embeddings counts nothing.
/// PaLM's and torchtitan's rules count all.
struct StepFlop {
  Flop model, hardware;
};
/// \param batch of a rank
StepFlop step_flop(const Schedule& schedule, const Model& model, int batch);

}  // namespace stepcast
