#pragma once

#include <functional>
#include <vector>

#include "models/model.hpp"
#include "records/phase_costs.hpp"
#include "sim/replay/kernels.hpp"

namespace stepcast {

/// Device time of a layer's GEMMs with weights in one pass.
using GemmTime = std::function<Seconds(const LayerWork&, GemmPass)>;

/// Time of one layer's forward, its backward, or the weight gradients of its backward.
using LayerTime = std::function<Seconds(const LayerWork&, Phase)>;

/// What GEMMs hide of the collectives of tensor parallelism, by collective of the model. Layers that ranks
/// share have column-parallel GEMMs, then a row-parallel one. `megatron`, as it comes: the input that is
/// gathered again beside the input gradients of the column GEMMs, the sum of these beside their weight
/// gradients. `userbuffers` (Transformer Engine) also: ring all-gathers of t pieces, the first of which is
/// the rank's own, beside the GEMM that reads them, and reduce-scatters pipelined in 4 pieces. The last
/// piece stays exposed. `async` (torchtitan's asynchronous tensor parallelism): rings of t pieces for both. A
/// collective takes 16 multiprocessors from the GEMM beside it, a ring of copies one. Sources: Transformer
/// Engine's pytorch/module/base.py, and Megatron-Bridge's performance guide. Only blocks overlap; embedding,
/// loss and head do not.
std::vector<Overlap> tensor_overlaps(const Model& model, const GemmTime& gemms, int multiprocessors);

/// Work of a shared expert: its first GEMM and the activation, and its second GEMM.
struct SharedExpert {
  LayerWork first{}, second{};
};
SharedExpert shared_expert_of(const LayerWork& work);

/// Most of an all-to-all that another micro-batch hides: 0.37 if the experts' ranks are in one NVLink domain
/// (of the flexible dispatcher, or 8 GPUs), else 0.69.
double most_hidden(const Model& model);

/// What is hidden of the all-to-alls of tokens, added to the overlaps of a model with `--dispatch-overlap`.
/// `micro-batches`: in a pair of micro-batches the all-to-alls of a block's forward are hidden by the block's
/// backward of the other, and those of its backward by the forward, by their bytes
/// (megatron/core/models/common/model_chunk_schedule_plan.py): at most 0.37 of each in one NVLink domain and
/// 0.69 between hosts. `shared`: the shared expert computes its first half beside the dispatch and its second
/// beside the way back (`SharedExpertMLP` of megatron/core/transformer/moe). An all-to-all takes 16
/// multiprocessors.
void add_dispatch_overlaps(const Model& model, const LayerTime& time, int multiprocessors,
                           std::vector<Overlap>& result);

}  // namespace stepcast
