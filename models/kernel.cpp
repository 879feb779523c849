#include "models/kernel.hpp"

#include <algorithm>

#include "core/ranges.hpp"

namespace stepcast {
namespace {

/// Sum of `part(kernel)` over the kernels; 0 for a backward without gradients.
auto sum_over(const LayerWork& work, bool forward, const auto& part) {
  const bool runs = forward || work.gradients != 0.0;
  return runs ? sum_of(work.kernels, part) : decltype(part(Kernel())){};
}

/// Sum over the GEMMs with weights whose gradients are computed.
double total_trained(const LayerWork& work, const auto& part) {
  double sum = 0.0;
  work.for_each_gemm([&](const Gemm& one) { sum += one.trains_weight() ? part(one) : 0.0; });
  return sum;
}

}  // namespace

double FusedAttention::seen() const {
  const double all = keys / documents, before = causal ? all / 2.0 : all;
  return window <= 0.0 || window >= all ? before : window - window * window / (2.0 * all);
}

Flop Kernel::backward_flop(double gradients) const {
  const bool frozen = gemm() != nullptr && gemm()->frozen;
  return std::max(0.0, gradients - (frozen ? 1.0 : 0.0)) * flop;
}

Flop LayerWork::forward() const { return sum_of(kernels, &Kernel::flop); }

Flop LayerWork::backward() const {
  return sum_of(kernels, [&](const Kernel& kernel) { return kernel.backward_flop(gradients); });
}

Flop LayerWork::recomputed() const {
  Flop sum;
  if (gradients == 0.0) return sum;
  for (const Kernel& kernel : kernels)
    if (const FusedAttention* fused = kernel.attention())
      sum += kernel.flop * fused->head_size / (fused->head_size + fused->value_size);
  return sum;
}

Bytes LayerWork::traffic(bool forward) const {
  return sum_over(*this, forward, [&](const Kernel& kernel) {
    return kernel.moved == Moved::kCast ? Bytes(0) : forward ? kernel.forward : kernel.backward;
  });
}

int LayerWork::launches(bool forward) const {
  return sum_over(*this, forward,
                  [&](const Kernel& kernel) { return forward ? kernel.launches : kernel.backward_launches; });
}

int LayerWork::issued(bool forward) const {
  return sum_over(*this, forward, [&](const Kernel& kernel) {
    return kernel.captured ? 0 : forward ? kernel.launches : kernel.backward_launches;
  });
}

int LayerWork::modules() const {
  return static_cast<int>(std::ranges::count_if(kernels, [](const Kernel& one) {
    const Gemm* gemm = one.gemm();
    const bool module = gemm != nullptr ? gemm->has_weight() && !gemm->shares_input
                                        : one.is(KernelRole::kNorm) || one.attention() != nullptr;
    return module && !one.captured;
  }));
}

double LayerWork::weight_gradient_gemms() const {
  return total_trained(*this, [](const Gemm& one) { return one.times; });
}

Flop LayerWork::weight_gradients() const {
  return Flop(total_trained(*this, [](const Gemm& one) { return one.flop(); }));
}

double LayerWork::gemm_outputs() const {
  return total_trained(*this, [](const Gemm& one) { return one.rows * one.columns * one.times; });
}

}  // namespace stepcast
