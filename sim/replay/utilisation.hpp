#pragma once

#include <variant>
#include <vector>

#include "models/model.hpp"
#include "schedule/schedule.hpp"

/// Utilisation of the devices' peak rate in a training step.
namespace stepcast {

/// Flop of an operation for one sample.
inline Flop flop_of(const Compute& compute, const Model& model) {
  if (compute.segment < 0) return Flop(0);  // the loss and updates
  const Segment& segment = model.segments[compute.segment];
  if (compute.phase == Phase::kForward || compute.phase == Phase::kRecompute)
    return (compute.needed ? segment.needed_part() : 1.0) * segment.flop.forward;
  if (!is_backward(compute.phase)) return Flop(0);
  Flop sum = segment.flop.backward;
  for (const LayerWork& work : segment.work) sum += work.recomputed();
  for (const LayerWork& work : segment.recomputed.work) sum += work.forward();
  if (compute.phase == Phase::kBackward) return sum;
  const double weights = segment.weight_part();
  return (compute.phase == Phase::kBackwardWeight ? weights : 1.0 - weights) * sum;
}

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
inline StepFlop step_flop(const Schedule& schedule, const Model& model, int batch) {
  StepFlop flop;
  const bool trains =
      has_action<Compute>(schedule, [](const Compute& one) { return is_backward(one.phase); });
  for (const Segment& segment : model.segments)
    flop.model += segment.flop.forward + (trains ? segment.flop.backward : Flop(0.0));
  flop.model =
      (1.0 * schedule.data_parallel * batch * model.parallel.tensor * model.parallel.context) * flop.model;
  const double samples = static_cast<double>(batch) / schedule.micro_batches;
  std::vector<std::vector<Flop>> computed;  // by program
  for (const Program& program : schedule.programs) {
    computed.emplace_back();
    for (const Op& op : program.ops)
      if (const auto* compute = std::get_if<Compute>(&op.action))
        computed.back().push_back(samples * flop_of(*compute, model));
  }
  for (const int program : schedule.program_of_rank)
    for (const Flop each : computed[program]) flop.hardware += each;
  return flop;
}

}  // namespace stepcast
