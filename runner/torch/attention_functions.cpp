#include "runner/torch/attention_functions.hpp"

#include <torch/version.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "runner/torch/training_dtypes.hpp"

namespace stepcast {
namespace {

using Context = torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

struct RepeatedAttention {
  AttentionFunction attend;
  std::optional<at::Generator> masks;
};

struct RecomputedAttentionFunction : torch::autograd::Function<RecomputedAttentionFunction> {
  static torch::Tensor forward(Context* context, const torch::Tensor& q, const torch::Tensor& k,
                               const torch::Tensor& v, const RepeatedAttention* repeated) {
    context->saved_data["repeated"] =
        reinterpret_cast<std::int64_t>(repeated);  // NOLINT: saved_data holds no pointers
    if (repeated->masks) context->saved_data["masks"] = state_of(*repeated->masks);
    context->save_for_backward({q, k, v});
    return repeated->attend(q, k, v);
  }

  static tensor_list backward(Context* context, const tensor_list& gradients) {
    const auto* repeated =
        reinterpret_cast<const RepeatedAttention*>(context->saved_data["repeated"].toInt());  // NOLINT
    tensor_list inputs;
    for (const torch::Tensor& saved : context->get_saved_variables())
      inputs.push_back(saved.detach().requires_grad_());
    torch::Tensor output;
    const auto attend = [&] { output = repeated->attend(inputs[0], inputs[1], inputs[2]); };
    const torch::AutoGradMode enabled(true);
    if (repeated->masks)
      from_state(*repeated->masks, context->saved_data["masks"].toTensor(), attend);
    else
      attend();
    tensor_list of_inputs = torch::autograd::grad({output}, inputs, gradients);
    of_inputs.emplace_back();
    return of_inputs;
  }
};

}  // namespace

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
  torch::Tensor future, padding;  // what a position must not see
  if (form.causal)
    future = torch::ones({form.queries, form.keys}, options.dtype(torch::kBool)).triu(1 + form.first);
  if (form.padding_mask) padding = torch::zeros({form.keys}, options);
  return [form, future, padding](const torch::Tensor& q, const torch::Tensor& own_k,
                                 const torch::Tensor& own_v) {
    const auto for_all = [&](const torch::Tensor& shared) {
      return form.sharing > 1 ? shared.repeat_interleave(form.sharing, 1) : shared;
    };
    const torch::Tensor k = for_all(own_k), v = for_all(own_v);
#if TORCH_VERSION_MAJOR >= 2
    if (form.fuses && q.is_cuda())
      return at::scaled_dot_product_attention(q, k, v, {}, 0.0, form.causal).transpose(1, 2).flatten(2);
#endif
    torch::Tensor scores = torch::matmul(q, k.transpose(-1, -2)) / std::sqrt(static_cast<double>(q.size(-1)));
    if (padding.defined()) scores = scores + padding;
    if (future.defined()) scores = scores.masked_fill(future, -std::numeric_limits<double>::infinity());
    const torch::Tensor probabilities = form.drop(torch::softmax(scores, -1));
    return torch::matmul(probabilities, v).transpose(1, 2).flatten(2);
  };
}

AttentionFunction recomputed_attention(AttentionFunction attention,
                                       const std::optional<at::Generator>& masks) {
  const auto repeated =
      std::make_shared<const RepeatedAttention>(RepeatedAttention{std::move(attention), masks});
  return [repeated](const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v) {
    return torch::GradMode::is_enabled() ? RecomputedAttentionFunction::apply(q, k, v, repeated.get())
                                         : repeated->attend(q, k, v);
  };
}

}  // namespace stepcast
