#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "runner/torch/torch_model.hpp"

/// Attention over queries, keys and values of every head, [batch, heads, positions, features].
namespace stepcast {

/// Rotates pairs of features, half a head apart, by an angle of position times base^(-2i/d) (Su et al.,
/// "RoFormer", 2021). \param positions of this rank's part of the sequence
LayerFunction rotation(const std::vector<std::int64_t>& positions, std::int64_t head,
                       const torch::TensorOptions& options);

struct AttentionForm {
  std::int64_t queries = 0, keys = 0;  ///< positions
  std::int64_t sharing = 1;            ///< heads of q per head of k and v
  std::int64_t first = 0;              ///< position of the first query among the keys
  bool causal = false;                 ///< a position attends to no later one
  bool padding_mask = false;           ///< a mask of the keys, which hides none, is added to the scores
  /// LibTorch 2 on a GPU stores no probabilities. \pre as many queries as keys, no dropout
  bool fuses = false;
  LayerFunction drop{};  ///< dropout of the probabilities
};

using AttentionFunction =
    std::function<torch::Tensor(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v)>;

/// softmax(q k^T / sqrt(d)) v per head, the heads side by side: [batch, positions, heads x features of v].
AttentionFunction attention(const AttentionForm& form, const torch::TensorOptions& options);

/// The same attention; its graph keeps q, k and v only, and its backward recomputes the rest with the same
/// dropout (`--recompute selective`). \param masks generator of dropout; empty: it draws nothing \pre the
/// function outlives its graphs
AttentionFunction recomputed_attention(AttentionFunction attention,
                                       const std::optional<at::Generator>& masks);

}  // namespace stepcast
