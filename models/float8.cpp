#include <algorithm>
#include <cmath>

#include "core/error.hpp"
#include "models/model.hpp"

/// GEMMs in float8 (Micikevicius et al., "FP8 Formats for Deep Learning", 2022), as in Transformer Engine and
/// torchao.
namespace stepcast {
namespace {

constexpr double kGranule = 16.0;  // rows of an operand are a multiple of this many elements
constexpr double kCast =
    2.0 + 2.0;  // bytes moved per element: read in 16 bit, and written by rows and by columns

bool fits(const Gemm& gemm) {
  return gemm.has_weight() && !gemm.chooses && std::fmod(gemm.columns, kGranule) == 0.0 &&
         std::fmod(gemm.depth, kGranule) == 0.0;
}

/// Bytes moved to cast an element, by the width of its array. If ranks gather `hidden` features of all
/// positions, each casts its own positions by rows, and the gathered array is copied by columns.
struct CastBytes {
  double hidden, others;
  std::int64_t width;
  [[nodiscard]] double of(double features) const {
    return features == static_cast<double>(width) ? hidden : others;
  }
};

/// Adds casts of the input, of weights that do not arrive in float8, and of the gradients of the outputs.
void cast(LayerWork& work, bool weights, const CastBytes& bytes) {
  const auto added = [](double forward, double backward, int launches, int backward_launches) {
    return Kernel{.forward = Bytes(forward),
                  .backward = Bytes(backward),
                  .launches = launches,
                  .backward_launches = backward_launches};
  };
  std::vector<Kernel> casts;
  const Gemm* before = nullptr;
  for (Kernel& kernel : work.kernels) {
    Gemm* gemm = kernel.gemm();
    if (gemm == nullptr || !fits(*gemm)) continue;
    gemm->float8 = true;
    const auto times = static_cast<int>(gemm->times);
    const bool is_cast = before != nullptr && before->rows == gemm->rows && before->depth == gemm->depth;
    before = gemm;
    const double inputs = gemm->rows * gemm->depth * gemm->times;
    if (!is_cast) casts.push_back(added(bytes.of(gemm->depth) * inputs, 0.0, times, 0));
    if (weights) {
      work.forward_weights += Bytes(kCast * gemm->columns * gemm->depth * gemm->times);
      casts.push_back(added(0.0, 0.0, times, 0));
    }
    casts.push_back(added(0.0, bytes.of(gemm->columns) * gemm->rows * gemm->columns * gemm->times, 0, times));
  }
  work.kernels.insert(work.kernels.end(), casts.begin(), casts.end());
}

bool is_weight(const Parameter& parameter, const Segment& segment) {
  const auto multiplies = [&](const Kernel& kernel) {
    const Gemm* gemm = kernel.gemm();
    return gemm != nullptr && gemm->float8 && gemm->columns == static_cast<double>(parameter.shape.front()) &&
           gemm->depth == static_cast<double>(parameter.shape.back());
  };
  return parameter.shape.size() == 2 &&
         std::ranges::any_of(segment.work, [&](const LayerWork& work) { return work.any(multiplies); });
}

/// All-gathers of tensor parallelism move float8, and so do the copies of gathered arrays.
void narrow_collectives(Model& model, Segment& segment, double part) {
  for (const int index : segment.collectives) {
    LayerCollective& one = model.collectives[index];
    if (one.kind != LayerCollectiveKind::kAllGather || one.group != LayerCollectiveGroup::kTensor) continue;
    one.per_sample = part * one.per_sample;
    if (!model.parallel.batch_first || one.work == static_cast<int>(segment.work.size())) continue;
    for (Kernel& copied : segment.work[one.work].kernels) {
      Bytes& moved = one.backward ? copied.backward : copied.forward;
      moved = part * moved;
    }
  }
}

}  // namespace

void multiply_in_float8(Model& model) {
  const double part = bytes_of("fp8") / bytes_of(model.precision.compute);
  const bool gathered = model.precision.gather == "fp8";
  const bool in_parts = model.parallel.tensor > 1 && model.parallel.sequence_parallel;
  bool any = false;
  for (Segment& segment : model.segments) {
    if (!segment.repeated) continue;
    const CastBytes bytes{in_parts ? 3.0 / model.parallel.tensor + 2.0 : kCast, kCast, segment.output.back()};
    for (std::vector<LayerWork>* works : {&segment.work, &segment.recomputed.work})
      for (LayerWork& work : *works) cast(work, !gathered, bytes);
    SavedBytes& inputs =
        model.recomputed_part == RecomputedPart::kOperations ? segment.recomputed.saved : segment.saved;
    inputs.size -= (1.0 - part) * segment.saved.gemm_inputs;
    narrow_collectives(model, segment, part);
    for (const int index : segment.parameters) {
      Parameter& parameter = model.parameters[index];
      parameter.float8 = is_weight(parameter, segment);
      if (!parameter.float8) continue;
      any = true;
      const double float8 = bytes_of("fp8") * static_cast<double>(parameter.numel());
      if (gathered)
        parameter.not_gathered = parameter.size - Bytes(float8);
      else
        parameter.copies = Bytes(2.0 * float8);
    }
  }
  if (!any)
    throw InputError(
        "precision fp8: '" + model.specification +
        "' has no blocks of a `repeat` with linear layers whose sizes are multiples of 16; take bf16");
}

}  // namespace stepcast
