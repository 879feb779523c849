#pragma once

#include <functional>
#include <vector>

#include "models/model.hpp"
#include "records/phase_costs.hpp"
#include "sim/replay/kernels.hpp"

namespace stepcast {

/// Device time of a layer's GEMMs with weights in one pass.
using GemmTime = std::function<Seconds(const LayerWork&, GemmPass)>;

/// What GEMMs hide of the collectives of tensor parallelism, by collective of the model. Layers that ranks
/// share have column-parallel GEMMs, then a row-parallel one. `megatron`, as it comes: the input that is
/// gathered again beside the input gradients of the column GEMMs, the sum of these beside their weight
/// gradients. `userbuffers` (Transformer Engine) also: ring all-gathers of t pieces, the first of which is
/// the rank's own, beside the GEMM that reads them, and reduce-scatters pipelined in 4 pieces. The last
/// piece stays exposed. `async` (torchtitan's asynchronous tensor parallelism): rings of t pieces for both. A
/// collective takes 16 multiprocessors from the GEMM beside it, a ring of copies one. Sources: Transformer
/// Engine's pytorch/module/base.py, and Megatron-Bridge's performance guide. All collectives start before
/// the GEMMs beside them. Only blocks overlap; embedding, loss and head do not.
std::vector<Overlap> tensor_overlaps(const Model& model, const GemmTime& gemms, int multiprocessors);

}  // namespace stepcast
