#include "models/muon.hpp"

#include <algorithm>

namespace stepcast {
namespace {

/// The smaller and the larger dimension.
std::pair<double, double> sides(const Parameter& weight) {
  const auto [less, more] = std::ranges::minmax(weight.shape);
  return {static_cast<double>(less), static_cast<double>(more)};
}

}  // namespace

LayerWork muon_update(const Model& model, const Parameter& weight) {
  constexpr int kElementwise = 8;  // momentum, Nesterov, cast, norm, its bound, division, decay, sum
  constexpr int kAddends = 2;      // of an iteration, copied to the output of their GEMMs
  const Precision& precision = model.precision;
  const double element = bytes_of(precision.compute);
  const auto [m, n] = sides(weight);
  LayerWork work;
  for (int i = 0; i < muon::kIterations; ++i)
    for (const auto& [columns, depth] : {std::pair(m, n), std::pair(m, m), std::pair(n, m)}) {
      const Gemm gemm{.rows = m, .columns = columns, .depth = depth};
      work.kernels.push_back({.computes = gemm,
                              .flop = Flop(gemm.flop()),
                              .forward = Bytes(element * (m * depth + depth * columns + m * columns))});
    }
  const double master = bytes_of(precision.master), stored = bytes_of(precision.parameters);
  const double moved = model.read_gradient() + 3.0 * model.element_of_gradient() +
                       3.0 * bytes_of(precision.optimizer) + 5.0 * element +
                       (master > 0.0 ? 5.0 * master + stored : 4.0 * stored);
  work.kernels.push_back(
      {.forward = Bytes(moved * m * n + muon::kIterations * 2.0 * element * (m * m + m * n)),
       .launches = kElementwise + kAddends * muon::kIterations});
  return work;
}

Bytes muon_workspace(const Model& model, const Segment& segment) {
  double most = 0.0;
  for (const int index : segment.parameters)
    if (const Parameter& weight = model.parameters[index]; model.by_muon(weight)) {
      const auto [m, n] = sides(weight);
      most = std::max(most, model.element_of_gradient() * m * n +
                                2.0 * bytes_of(model.precision.compute) * (m * n + m * m));
    }
  return Bytes(most);
}

}  // namespace stepcast
