#include <algorithm>

#include "models/layer_kinds.hpp"
#include "models/model.hpp"

namespace stepcast {
namespace {

/// Walks the kernels of a model in their order, and changes what each segment keeps.
struct Autocast {
  const RecomputedPart recomputed;

  /// \param again they are recomputed, so that their bytes are kept
  void cast(std::vector<LayerWork>& works, SavedBytes& saved, bool again) {
    kept_bytes = &saved;
    is_repeated = again;
    for (LayerWork& work : works) cast(work);
    saved.float32 = std::min(saved.float32, saved.size);
  }

  void cast(LayerWork& work) {
    const bool norm = work.any([](const Kernel& one) { return one.is(KernelRole::kNorm); });
    const bool drops = work.any([](const Kernel& one) { return one.kept.masks > Bytes(0); });
    std::vector<Kernel> casts;
    for (Kernel& kernel : work.kernels) {
      if (const Gemm* gemm = kernel.gemm()) {
        if (gemm->has_weight())
          casts.push_back(operands(*gemm, work));
        else
          latest_cast = {};
        is_wide = false;
      } else if (kernel.moved == Moved::kCast) {
        if (norm) kernel.forward = kernel.backward = Bytes(0);  // it is in fp32 already
      } else if (kernel.is(KernelRole::kCoreAttention)) {
        if (kernel.moved == Moved::kCompute && kernel.attention() == nullptr)
          casts.push_back(probabilities(kernel, drops));
        latest_cast = {};
        is_wide = false;
      } else if (kernel.is(KernelRole::kNorm) || kernel.is(KernelRole::kPromoted) ||
                 (kernel.is(KernelRole::kResidual) && stream)) {
        if (keeps(false)) kept_bytes->float32 += kernel.kept.size - kernel.kept.float32;
        // A norm keeps its input.
        if (keeps(false) && kernel.is(KernelRole::kNorm)) kept_bytes->float32 += 0.5 * kernel.forward;
        kernel.moved = Moved::kFloat32;
        is_wide = stream = true;
        activated = false;
        latest_cast = {};
      } else if (norm && kernel.moved == Moved::kFloat32) {
        if (keeps(false)) kept_bytes->float32 += kernel.kept.size;  // its input, the residual stream, is fp32
      } else if (kernel.forward > Bytes(0) && kernel.moved == Moved::kCompute) {
        is_wide = false;
        activated = activated || kernel.is(KernelRole::kExpertActivation);
      }
    }
    work.kernels.insert(work.kernels.end(), casts.begin(), casts.end());
  }

  /// Whether the segment keeps what these kernels keep, and not only their recomputation.
  [[nodiscard]] bool keeps(bool core_attention) const {
    return is_repeated || !(recomputed == RecomputedPart::kOperations ||
                            (core_attention && contains(recomputed, RecomputedPart::kCoreAttention)));
  }

  /// Bytes of scale, mask and softmax per probability, unless one kernel does all three. Forward: 4 scale
  /// scores in 16 bit, 6 add a mask in fp32 or cast, 8 are softmax's. Backward: 12 softmax's, 6 cast, 4
  /// scale, and those of a mask in 16 bit. Softmax in fp32 keeps its output, and the product with the values
  /// a cast of it, or of what dropout left (pytorch.org/docs/stable/amp.html: ops that autocast to float32,
  /// or to the widest input type).
  Kernel probabilities(Kernel& kernel, bool drops) {
    const Bytes kept = (drops ? 0.5 : 1.0) * (kernel.kept.size - kernel.kept.masks);
    const double p = kept / float32_bytes(1.0);
    constexpr double kUnmasked = 8.0;  // elements that the backward moves without autocast
    kernel.moved = Moved::kFloat32;
    if (p > 0.0 && kernel.launches > 1) {
      kernel.forward = Bytes(18.0 * p);
      kernel.backward = Bytes(22.0 * p) + 0.5 * (kernel.backward - float32_bytes(kUnmasked * p));
    }
    if (keeps(true)) kept_bytes->float32 += kept;
    if (keeps(true) && !drops) kept_bytes->size += kept;
    const int launches = p > 0.0 ? 1 : 0;
    return moves(p, p, launches, launches, Moved::kCast);
  }

  /// Casts of a GEMM's input, whose gradient is cast back, and of its weight, whatever the batch. Each GEMM
  /// that reads a norm's output casts it: q, k and v; gate and up, which have as many columns; experts'.
  Kernel operands(const Gemm& gemm, LayerWork& work) {
    constexpr double kCast = 12.0;  // a weight's 4 + 2 B, of work whose bytes in 16 bit are half of these
    const bool same = gemm.shares_input
                          ? gemm.depth == latest_cast.depth
                          : gemm.columns == latest_cast.columns && gemm.depth == latest_cast.depth &&
                                gemm.rows == latest_cast.rows;
    const bool another = latest_cast.depth > 0.0 &&
                         (same || (gemm.times > 1.0 && !activated && gemm.depth == latest_cast.depth));
    const bool wide = is_wide || another;
    if (wide) latest_cast = gemm;
    const double inputs = wide ? gemm.rows * gemm.depth * gemm.times : 0.0;
    const double weights = kCast * gemm.columns * gemm.depth * gemm.times;
    work.forward_weights += Bytes(weights);
    if (!gemm.frozen) work.backward_weights += Bytes(weights);
    if (another && gemm.times == 1.0 && keeps(false)) kept_bytes->size += float32_bytes(inputs);
    const auto launches = static_cast<int>((wide ? 2.0 : 1.0) * gemm.times);
    Kernel cast = moves(inputs, inputs, launches, launches, Moved::kCast);
    cast.experts = static_cast<int>(gemm.times);
    return cast;
  }

  SavedBytes* kept_bytes = nullptr;
  bool is_repeated = false;
  bool is_wide = false;    ///< the latest output is in fp32
  bool stream = false;     ///< residual sums are in fp32, since an embedding or a norm is
  bool activated = false;  ///< between the products of routed experts
  Gemm latest_cast{};      ///< the latest one that cast its input; depth 0: none since the norm
};

/// Marks the weights that the segment's GEMMs cast, those of other segments that it shares too.
void add_copies(const Segment& segment, Model& model) {
  std::vector<int> read = segment.all_parameters();
  read.insert(read.end(), segment.tied.begin(), segment.tied.end());
  for (const int index : read) {
    Parameter& one = model.parameters[index];
    const auto rows = static_cast<double>(one.shape.front()), count = static_cast<double>(one.numel());
    const auto reads = [&](const Kernel& kernel) {
      const Gemm* gemm = kernel.gemm();
      return gemm != nullptr && gemm->has_weight() && rows <= gemm->columns && count / rows == gemm->depth;
    };
    if (one.shape.size() > 1 && segment.any(reads))
      one.casts = Bytes(bytes_of(model.precision.compute) * count);
  }
}

}  // namespace

void autocast(Model& model) {
  Autocast walk{model.recomputed_part};
  const double part = bytes_of(model.precision.compute) / bytes_of("fp32");
  for (Segment& segment : model.segments) {
    Autocast again = walk;
    again.cast(segment.recomputed.work, segment.recomputed.saved, true);
    walk.cast(segment.work, segment.saved, false);
    add_copies(segment, model);
    if (walk.is_wide) segment.output_size = (1.0 / part) * segment.output_size;
  }
}

}  // namespace stepcast
