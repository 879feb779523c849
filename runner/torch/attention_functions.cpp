#include "runner/torch/attention_functions.hpp"

#include <torch/version.h>

#include <cmath>
#include <limits>
#include <vector>

namespace stepcast {

LayerFunction rotation(const std::vector<std::int64_t>& positions, std::int64_t head,
                       const torch::TensorOptions& options) {
  constexpr double kBase = 10'000.0;
  const torch::Tensor frequency =
      torch::pow(kBase, -torch::arange(0, head, 2, torch::kFloat64) / static_cast<double>(head));
  const torch::Tensor angle = torch::outer(torch::tensor(positions, torch::kFloat64), frequency);
  const auto of_both = [&](const torch::Tensor& half) { return torch::cat({half, half}, -1).to(options); };
  return [cosine = of_both(angle.cos()), sine = of_both(angle.sin())](const torch::Tensor& x) {
    const std::vector<torch::Tensor> halves = x.chunk(2, -1);
    return x * cosine + torch::cat({-halves[1], halves[0]}, -1) * sine;
  };
}

AttentionFunction attention(const AttentionForm& form, const torch::TensorOptions& options) {
  torch::Tensor future;  // what a position must not see
  if (form.causal)
    future = torch::ones({form.queries, form.keys}, options.dtype(torch::kBool)).triu(1 + form.first);
  return [form, future](const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v) {
#if TORCH_VERSION_MAJOR >= 2
    if (form.fuses && q.is_cuda())
      return at::scaled_dot_product_attention(q, k, v, {}, 0.0, form.causal).transpose(1, 2).flatten(2);
#endif
    torch::Tensor scores = torch::matmul(q, k.transpose(-1, -2)) / std::sqrt(static_cast<double>(q.size(-1)));
    if (future.defined()) scores = scores.masked_fill(future, -std::numeric_limits<double>::infinity());
    const torch::Tensor probabilities = form.drop(torch::softmax(scores, -1));
    return torch::matmul(probabilities, v).transpose(1, 2).flatten(2);
  };
}

}  // namespace stepcast
