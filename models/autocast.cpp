#include <algorithm>

#include "models/layer_kinds.hpp"
#include "models/model.hpp"

namespace stepcast {
namespace {

using Products = std::vector<std::pair<double, double>>;  // columns and depth of GEMMs with weights

/// Walks the kernels of a segment in their order, and what they keep.
class Autocast {
 public:
  Autocast(Products& products, SavedBytes& saved) : products_(products), saved_(saved) {}

  void cast(LayerWork& work) {
    const bool norm = work.any([](const Kernel& one) { return one.is(KernelRole::kNorm); });
    std::vector<Kernel> casts;
    for (Kernel& kernel : work.kernels) {
      if (const Gemm* gemm = kernel.gemm()) {
        if (gemm->has_weight())
          casts.push_back(operands(*gemm, work));
        else
          last_ = {};
        wide_ = false;
      } else if (kernel.moved == Moved::kCast) {
        if (norm) kernel.forward = kernel.backward = Bytes(0);  // it is in fp32 already
      } else if (kernel.is(KernelRole::kNorm) || kernel.is(KernelRole::kPromoted)) {
        if (kernel.is(KernelRole::kNorm)) saved_.float32 += 0.5 * kernel.forward;  // its input
        promote(kernel);
        wide_ = true;
        last_ = {};
      } else if (kernel.is(KernelRole::kCoreAttention)) {
        if (kernel.moved == Moved::kCompute && kernel.attention() == nullptr) promote(kernel);
        wide_ = false;
        last_ = {};
      } else if (kernel.forward > Bytes(0) && kernel.moved == Moved::kCompute) {
        wide_ = false;
      }
    }
    work.kernels.insert(work.kernels.end(), casts.begin(), casts.end());
    saved_.float32 = std::min(saved_.float32, saved_.size);
  }

 private:
  void promote(Kernel& kernel) {
    kernel.moved = Moved::kFloat32;
    saved_.float32 += kernel.kept.size - kernel.kept.float32 - kernel.kept.masks;
  }

  /// Casts of a GEMM's input, whose gradient is cast back, and of its weight, whatever the batch.
  Kernel operands(const Gemm& gemm, LayerWork& work) {
    constexpr double kCast = 12.0;  // a weight's 4 + 2 B, of work whose bytes in 16 bit are half of these
    const bool again = last_ == std::pair(gemm.rows, gemm.depth);  // each GEMM that reads a norm casts it
    const bool wide = wide_ || again;
    if (wide) last_ = {gemm.rows, gemm.depth};
    const double inputs = wide ? gemm.rows * gemm.depth * gemm.times : 0.0;
    const double weights = kCast * gemm.columns * gemm.depth * gemm.times;
    work.forward_weights += Bytes(weights);
    if (!gemm.frozen) work.backward_weights += Bytes(weights);
    if (again) saved_.size += float32_bytes(inputs);
    products_.emplace_back(gemm.columns, gemm.depth);
    Kernel casts = moves(inputs, inputs, static_cast<int>((wide ? 2.0 : 1.0) * gemm.times), Moved::kCast);
    casts.backward_launches = casts.launches;
    return casts;
  }

  Products& products_;
  SavedBytes& saved_;
  bool wide_ = false;                 ///< the latest output is in fp32
  std::pair<double, double> last_{};  ///< rows and depth of the input in fp32 that a GEMM cast
};

}  // namespace

void autocast(Model& model) {
  Products products;
  for (Segment& segment : model.segments) {
    Autocast own(products, segment.saved), again(products, segment.recomputed.saved);
    for (LayerWork& work : segment.work) own.cast(work);
    for (LayerWork& work : segment.recomputed.work) again.cast(work);
  }
  for (Parameter& one : model.parameters) {
    const auto reads = [&](const auto& product) {
      return static_cast<double>(one.shape.front()) <= product.first &&
             static_cast<double>(one.shape.back()) == product.second;
    };
    if (one.shape.size() == 2 && std::ranges::any_of(products, reads))
      one.copies = Bytes(bytes_of(model.precision.compute) * static_cast<double>(one.numel()));
  }
}

}  // namespace stepcast
