#include "runner/torch/transformer_layers.hpp"

#include <cmath>
#include <limits>
#include <tuple>

namespace stepcast {

LayerFunction embedding(const EmbeddingTables& tables) {
  return [tables](const torch::Tensor& tokens) {
    torch::Tensor sum = torch::embedding(tables.word, tokens);
    if (tables.type.defined()) sum = sum + torch::embedding(tables.type, torch::zeros_like(tokens));
    const torch::Tensor positions = torch::arange(tokens.size(1), torch::kInt64).unsqueeze(0);
    return sum + torch::embedding(tables.position, positions);
  };
}

LayerFunction layer_norm(const torch::Tensor& weight, const torch::Tensor& bias) {
  constexpr double kEpsilon = 1e-5;  // BERT's own is 1e-12, which changes no time
  return [weight, bias](const torch::Tensor& x) {
    return torch::layer_norm(x, {x.size(-1)}, weight, bias, kEpsilon);
  };
}

LayerFunction dropout(std::int64_t percent, const at::Generator& generator) {
  if (percent == 0) return [](const torch::Tensor& x) { return x; };
  return [kept = 1.0 - static_cast<double>(percent) / 100.0, generator](const torch::Tensor& x) {
    return x * torch::empty_like(x).bernoulli_(kept, generator).div_(kept);
  };
}

namespace {

using Projected = std::tuple<torch::Tensor, torch::Tensor, torch::Tensor>;

Projected project(const AttentionProjections& by, const torch::Tensor& x) {
  if (by.fused_weight.defined()) {
    const auto parts = torch::linear(x, by.fused_weight, by.fused_bias).chunk(3, -1);
    return {parts[0], parts[1], parts[2]};
  }
  const torch::Tensor query = torch::linear(x, by.query_weight, by.query_bias);
  const torch::Tensor key = torch::linear(x, by.key_weight, by.key_bias);
  const torch::Tensor value = torch::linear(x, by.value_weight, by.value_bias);
  return {query, key, value};
}

/// [batch, sequence, hidden] to [batch, heads, sequence, hidden / heads].
torch::Tensor split_heads(const torch::Tensor& x, std::int64_t heads) {
  return x.view({x.size(0), x.size(1), heads, -1}).transpose(1, 2);
}

}  // namespace

LayerFunction self_attention(const Layer& layer, const AttentionProjections& projections,
                             const at::Generator& generator) {
  const std::int64_t heads = layer.sizes.at("heads");
  const std::int64_t sequence = layer.input.at(0);
  const double scale = std::sqrt(static_cast<double>(layer.input.at(1) / heads));
  torch::Tensor future;  // what a position must not see
  if (layer.sizes.at("causal") != 0) future = torch::ones({sequence, sequence}, torch::kBool).triu(1);
  return [=, drop = dropout(layer.sizes.at("dropout"), generator)](const torch::Tensor& x) {
    const auto [query, key, value] = project(projections, x);
    const torch::Tensor keys = split_heads(key, heads);
    const torch::Tensor values = split_heads(value, heads);
    torch::Tensor scores = torch::matmul(split_heads(query, heads), keys.transpose(-1, -2)) / scale;
    if (future.defined()) scores = scores.masked_fill(future, -std::numeric_limits<double>::infinity());
    const torch::Tensor probabilities = drop(torch::softmax(scores, -1));
    return torch::matmul(probabilities, values).transpose(1, 2).flatten(2);
  };
}

LayerFunction tied_linear(const torch::Tensor& weight) {
  return [weight](const torch::Tensor& x) {
    torch::Tensor alias = weight.detach().requires_grad_();
    alias.mutable_grad() = weight.grad();
    return torch::linear(x, alias);
  };
}

}  // namespace stepcast
