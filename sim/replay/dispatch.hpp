#pragma once

#include <vector>

#include "records/phase_costs.hpp"
#include "sim/collectives/nccl_tuning.hpp"
#include "sim/replay/device_scaling.hpp"

/// How tokens reach their experts: all-to-alls of NCCL, or a flexible dispatcher (DeepEP, HybridEP).
namespace stepcast {

/// Multiprocessors that an all-to-all of tokens takes: those of `--dispatch-sms` with a flexible dispatcher,
/// 16 with NCCL.
int dispatch_blocks(const Model& model);

/// States it if N of `flexN` splits the experts' ranks otherwise than hosts with GPUs do; else empty.
std::string domain_note(const Model& model, int gpus_per_host);

/// Times of a flexible dispatcher, by collective of the model; empty if it has none whose rates are known.
/// With r rows of b bytes in all that arrive at each of e ranks of one NVLink domain, on m multiprocessors:
///
///     t = call + r row / m + b (e - 1)/e / (part NVLink rate)
///
/// `row` and `part` are in topologies/devices/kernels.yaml, with their sources. `call` is 25 us in a graph of
/// the whole iteration, otherwise 85 us with what the host does and the copy into the dispatcher's buffer
/// (docs/kernels.md). Between domains the network decides, and NCCL's all-to-all is in its place.
std::vector<DispatchCost> dispatch_costs(const Model& model, const DeviceModel& device, double samples);

/// Cost of an all-to-all among `ranks` by a flexible dispatcher.
NcclCost dispatched(NcclCost cost, const DispatchCost& dispatch, int ranks);

/// Work of a shared expert: its first GEMM and the activation, and its second GEMM.
struct SharedExpert {
  LayerWork first{}, second{};
};
SharedExpert shared_expert_of(const LayerWork& work);

/// Most of an all-to-all that another micro-batch hides: 0.37 if the experts' ranks are in one NVLink domain
/// (of the flexible dispatcher, or a host), else 0.69.
double most_hidden(const Model& model);

/// Hidden parts of the all-to-alls of tokens, added to the overlaps of a model with `--dispatch-overlap`.
/// `micro-batches`: in a pair of micro-batches the all-to-alls of a block's forward are hidden by the block's
/// backward of the other, and those of its backward by the forward, by their bytes
/// (megatron/core/models/common/model_chunk_schedule_plan.py): at most 0.37 of each in one NVLink domain and
/// 0.69 between hosts. `shared`: the shared expert computes its first half beside the dispatch and its second
/// beside the way back (`SharedExpertMLP` of megatron/core/transformer/moe). GEMMs lack the multiprocessors
/// of the all-to-all.
void add_dispatch_overlaps(const Model& model, const LayerTime& time, int multiprocessors,
                           std::vector<Overlap>& result);

}  // namespace stepcast
