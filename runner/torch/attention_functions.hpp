#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "runner/torch/torch_model.hpp"

/// What attention computes with queries, keys and values of every head, [batch, heads, positions, features].
namespace stepcast {

/// Turns pairs of features, half a head apart, by an angle of position times base^(-2i/d) (Su et al., "RoFormer", 2021).
/// \param positions of this rank's part of the sequence
LayerFunction rotation(const std::vector<std::int64_t>& positions, std::int64_t head,
                       const torch::TensorOptions& options);

struct AttentionForm {
  std::int64_t queries = 0, keys = 0;  ///< positions
  std::int64_t sharing = 1;            ///< heads of q to one of k and v
  std::int64_t first = 0;              ///< position of the first query among the keys
  bool causal = false;                 ///< a position does not see those after it
  bool fuses =
      false;  ///< LibTorch 2 on a GPU stores no probabilities \pre as many queries as keys, no dropout
  LayerFunction drop{};  ///< of the probabilities
};

using AttentionFunction =
    std::function<torch::Tensor(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v)>;

/// softmax(q k^T / sqrt(d)) v per head, the heads side by side: [batch, positions, heads x features of v].
AttentionFunction attention(const AttentionForm& form, const torch::TensorOptions& options);

/// The same, of which a graph keeps q, k and v alone: its backward computes it again, with the same dropout (`--recompute
/// selective`). \param masks where it draws from; none: it draws nothing \pre the function outlives its graphs
AttentionFunction computed_again(AttentionFunction attention, const std::optional<at::Generator>& masks);

}  // namespace stepcast
