#pragma once

#include <algorithm>
#include <functional>
#include <vector>

#include "models/layer.hpp"
#include "models/model.hpp"
#include "records/phase_costs.hpp"
#include "sim/replay/kernels.hpp"

namespace stepcast {

/// Device time of a layer's GEMMs with weights in one pass.
using GemmTime = std::function<Seconds(const LayerWork&, GemmPass)>;

/// GEMMs of layers that ranks share, in seconds.
struct SharedGemms {
  double columns = 0.0, column_inputs = 0.0, column_weights = 0.0;
  double row = 0.0, row_inputs = 0.0;
};

/// Collectives and GEMMs of one segment.
struct SegmentOverlap {
  static constexpr double kPieces = 4.0;                     // of a pipelined reduce-scatter
  static constexpr double kBlocks = 16.0, kRingBlock = 1.0;  // multiprocessors of a collective beside a GEMM
  using Kind = LayerCollectiveKind;

  const Model& model;
  const Segment& segment;
  const GemmTime& gemms;
  int multiprocessors;

  void add(std::vector<Overlap>& result) const {
    int begin = 0;
    for (const int index : segment.collectives) {
      const LayerCollective& one = model.collectives[index];
      if (one.backward || one.group != LayerCollectiveGroup::kTensor) continue;
      if (one.kind == Kind::kAllGather) {
        begin = one.work;
        continue;
      }
      const SharedGemms shared = gemms_of(begin, one.work);
      for (const int other : segment.collectives)
        if (const LayerCollective& each = model.collectives[other];
            each.group == LayerCollectiveGroup::kTensor && each.per_sample > Bytes(0) && each.work >= begin &&
            each.work <= one.work)  // not the sums of gradients of norms
          result[other] = overlap(each, each.work == one.work, shared);
      begin = one.work;
    }
  }

  [[nodiscard]] SharedGemms gemms_of(int begin, int end) const {
    SharedGemms shared;
    int row = end;
    while (row > begin && !segment.work[--row].has_weight()) {
    }
    for (int i = begin; i < row; ++i) {
      const LayerWork& work = segment.work[i];
      if (!work.has_weight()) continue;
      shared.columns += gemms(work, GemmPass::kForward).count();
      shared.column_inputs += gemms(work, GemmPass::kInput).count();
      shared.column_weights += gemms(work, GemmPass::kWeights).count();
    }
    if (row < end) {
      shared.row = gemms(segment.work[row], GemmPass::kForward).count();
      shared.row_inputs = gemms(segment.work[row], GemmPass::kInput).count();
    }
    return shared;
  }

  /// \param leaves the collective stands behind the row-parallel GEMM
  [[nodiscard]] Overlap overlap(const LayerCollective& one, bool leaves, const SharedGemms& shared) const {
    const std::string& mode = model.execution.tensor_overlap;
    const double others = (model.parallel.tensor - 1.0) / model.parallel.tensor;
    const bool gathers = one.kind == Kind::kAllGather, async = mode == "async";
    if (one.backward && gathers && one.name.ends_with(kRegather)) return {shared.column_inputs, 1.0, beside};
    if (one.backward && !gathers && !leaves)
      return async ? Overlap{others * shared.column_inputs, others, ring}
                   : Overlap{shared.column_weights, 1.0, beside};
    if (mode == "megatron" || one.kind == Kind::kAllReduce) return {};
    if (gathers) return {others * (leaves ? shared.row_inputs : shared.columns), 1.0, ring};
    const double hidden = async ? others : 1.0 - 1.0 / kPieces;
    return {hidden * shared.row, hidden, async ? ring : beside};
  }

  double ring = 1.0 - kRingBlock / multiprocessors, beside = 1.0 - kBlocks / multiprocessors;
};

/// What GEMMs hide of the collectives of tensor parallelism, by collective of the model. Layers that ranks
/// share have column-parallel GEMMs, then a row-parallel one. `megatron`, as it comes: the input that is
/// gathered again beside the input gradients of the column GEMMs, the sum of these beside their weight
/// gradients. `userbuffers` (Transformer Engine) also: ring all-gathers of t pieces, the first of which is
/// the rank's own, beside the GEMM that reads them, and reduce-scatters pipelined in 4 pieces. The last
/// piece stays exposed. `async` (torchtitan's asynchronous tensor parallelism): rings of t pieces for both. A
/// collective takes 16 multiprocessors from the GEMM beside it, a ring of copies one. Sources: Transformer
/// Engine's pytorch/module/base.py, and Megatron-Bridge's performance guide. All collectives start before
/// the GEMMs beside them. Only blocks overlap; embedding, loss and head do not.
inline std::vector<Overlap> tensor_overlaps(const Model& model, const GemmTime& gemms, int multiprocessors) {
  std::vector<Overlap> result(model.collectives.size());
  if (model.execution.tensor_overlap == "none" || model.parallel.tensor == 1) return result;
  for (const Segment& segment : model.segments)
    if (segment.repeated) SegmentOverlap{model, segment, gemms, multiprocessors}.add(result);
  return result;
}

}  // namespace stepcast
