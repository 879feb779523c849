#pragma once

#include "models/model.hpp"

/// Muon (Jordan et al., kellerjordan.github.io/posts/muon, 2024), which orthogonalizes the momentum of a
/// weight before it adds it, as torch.optim.Muon and Megatron-LM compute it. With a gradient g, a momentum u
/// and a weight w of p x q, m = min(p, q), n = max(p, q):
///
///     u <- u + (1 - b)(g - u),  X <- g + b(u - g),  X <- X / |X|
///     5 times:  G = X X^T,  X <- a X + (b' G + c' G G) X          flop 5 (4 m^2 n + 2 m^3), X is m x n
///     w <- (1 - rate decay) w - 0.2 sqrt(n) rate X
///
/// GEMMs run in the precision's `compute`. Each weight of a block is updated alone, kernel by kernel; of a
/// weight that tensor-parallel ranks share each rank updates its part as if it were whole (Megatron-LM's
/// `--muon-tp-mode blockwise`, its default). Query, key and value, and gate and value of a feed-forward
/// layer, count as weights of their own. Every replica updates all weights, but for `--zero whole`.
namespace stepcast {

namespace muon {
inline constexpr int kIterations = 5;
inline constexpr double kMomentum = 0.95;
}  // namespace muon

/// Kernels of the update of one weight, as those of a forward of one sample. \pre model.by_muon(weight)
LayerWork muon_update(const Model& model, const Parameter& weight);

/// Largest memory that the updates of a segment's weights hold beside states, gradients and weights: the
/// momentum's X in the dtype of gradients, X and its successor, and two of G.
Bytes muon_workspace(const Model& model, const Segment& segment);

}  // namespace stepcast
