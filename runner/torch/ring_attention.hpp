#pragma once

#include <vector>

#include "runner/torch/attention_functions.hpp"

namespace stepcast {

/// A rank's place in a ring, and what it sends.
struct RingForm {
  /// An exchange of the model, and the one that waits for it.
  struct Shift {
    int begin = 0, end = 0;
  };
  int rank = 0;
  std::int64_t positions = 0;  ///< that each rank has
  bool causal = false;
  const TorchModel* model = nullptr;  ///< outlives the function
  std::vector<Shift> forward{};       ///< by step; one less than there are ranks
  std::vector<Shift> backward{};      ///< by step
};

/// Attention whose keys and values, those of Model::positions() on every rank, go round a ring of c ranks (Liu et al., "Ring
/// Attention with Blockwise Transformers", 2023); several heads of q may share one of k and v.
///
/// In step i rank r attends to those of rank j = r - i mod c, o_i = softmax(q k_j^T / sqrt(d)) v_j with l_i = log sum exp(q
/// k_j^T / sqrt(d)), while it sends them on and receives the next. What is put together is l = log sum_i exp(l_i) and
/// o = sum_i exp(l_i - l) o_i. Of causal attention a part of both is seen:
///
///     j = r   the own positions, masked      j < r   all q, first half of k and v      j > r   second half of q, all k and v
///
/// The backward computes probabilities p = exp(q k_j^T / sqrt(d) - l) again, with j = r - 1 - i, so that the own keys and
/// values are the last: gradients of those of step i are sent in step i + 1 to the rank that adds its part to them then, and
/// are at home with the last step. Kept: q, the k and v of rank r - 1, o, and l. Whatever the dtype, o and l are summed in
/// float32, or in float64.
AttentionFunction ring_attention(const RingForm& form, const torch::TensorOptions& options);

}  // namespace stepcast
