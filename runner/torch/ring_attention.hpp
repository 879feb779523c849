#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "runner/torch/torch_model.hpp"

namespace stepcast {

/// Attention over queries, keys and values of every head, [batch, heads, positions, features].
using AttentionFunction =
    std::function<torch::Tensor(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v)>;

/// Position of a rank in a ring, and its collectives.
struct RingForm {
  /// Collective of the model, and the wait for it.
  struct Shift {
    int begin = 0, end = 0;
  };
  int rank = 0;
  std::int64_t positions = 0;  ///< that each rank has
  bool causal = false;
  const TorchModel* model = nullptr;  ///< outlives the function
  std::vector<Shift> forward{};       ///< by step; one less than ranks
  std::vector<Shift> backward{};      ///< by step
};

/// Ring attention: keys and values, those of Model::positions() on every rank, rotate through a ring of c
/// ranks (Liu et al., "Ring Attention with Blockwise Transformers", 2023). Several heads of q may share one
/// of k and v.
///
/// In step i rank r attends to those of rank j = r - i mod c, o_i = softmax(q k_j^T / sqrt(d)) v_j with l_i =
/// log sum exp(q k_j^T / sqrt(d)), while it sends them on and receives the next. The result is l = log sum_i
/// exp(l_i) and o = sum_i exp(l_i - l) o_i. Causal attention uses a part of both:
///
///     j = r   the own positions, masked
///     j < r   all q, first half of k and v
///     j > r   second half of q, all k and v
///
/// The backward recomputes probabilities p = exp(q k_j^T / sqrt(d) - l) with j = r - 1 - i, so that the own
/// keys and values come last. Gradients of those of step i are sent in step i + 1 to the rank that adds its
/// part next, and arrive at their owner with the last step. Saved: q, the k and v of rank r - 1, o, and l.
/// Whatever the dtype, o and l are summed in float32, or in float64.
AttentionFunction ring_attention(const RingForm& form, const torch::TensorOptions& options);

}  // namespace stepcast
