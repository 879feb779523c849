#pragma once

#include <torch/torch.h>

#include <functional>

#include "models/model.hpp"

/// Layers of transformers as functions over [batch, sequence, hidden]. Each calls the kernels that PyTorch's
/// modules call on a CPU, in their order, so that autograd makes gradients ready in the same order.
namespace stepcast {

using LayerFunction = std::function<torch::Tensor(const torch::Tensor&)>;

/// Token ids [batch, sequence], int64, to the sum of three rows per token: its own, of token type 0, and of
/// its position. `type` is undefined where the model has no token types.
struct EmbeddingTables {
  torch::Tensor word, position, type;
};
LayerFunction embedding(const EmbeddingTables& tables);

LayerFunction layer_norm(const torch::Tensor& weight, const torch::Tensor& bias);

/// Zeroes each element with this probability and scales the others up. Draws from `generator`, which is
/// shared, so that masks follow from the model's seed and the order of the forwards. 0 % is the identity.
LayerFunction dropout(std::int64_t percent, const at::Generator& generator);

/// Three projections, or one that gives q, k and v side by side.
struct AttentionProjections {
  torch::Tensor query_weight, query_bias;
  torch::Tensor key_weight, key_bias;
  torch::Tensor value_weight, value_bias;
  torch::Tensor fused_weight, fused_bias;  ///< defined instead of the others
};
/// softmax(q k^T / sqrt(hidden/heads)) v per head. q, k and v are computed in this order, so that gradients
/// of value become ready first and those of query last.
LayerFunction self_attention(const Layer& layer, const AttentionProjections& projections,
                             const at::Generator& generator);

/// y = x weight^T with a weight that another segment owns.
///
/// Its gradient is complete only after the owner's backward. Therefore the function uses a second leaf over
/// the same memory, whose gradient is the owner's gradient: what flows here is added to it silently, and the
/// owner's accumulation, the only one that calls the gradient hook, comes after it, be the graph whole or cut
/// into segments. A tied weight in a single graph would be accumulated once, cut into segments twice.
LayerFunction tied_linear(const torch::Tensor& weight);

}  // namespace stepcast
