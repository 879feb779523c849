#include <torch/version.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/ranges.hpp"
#include "models/layer.hpp"
#include "runner/torch/layer_builder.hpp"
#include "runner/torch/ring_attention.hpp"
#include "runner/torch/training_dtypes.hpp"

namespace stepcast {
namespace {

struct RepeatedAttention {
  AttentionFunction attend;
  std::optional<at::Generator> masks;
};

struct RecomputedAttentionFunction : torch::autograd::Function<RecomputedAttentionFunction> {
  static torch::Tensor forward(AutogradContext* context, const torch::Tensor& q, const torch::Tensor& k,
                               const torch::Tensor& v, const RepeatedAttention* repeated) {
    // NOLINTNEXTLINE: saved_data holds no pointers
    context->saved_data["repeated"] = reinterpret_cast<std::int64_t>(repeated);
    if (repeated->masks) context->saved_data["masks"] = state_of(*repeated->masks);
    context->save_for_backward({q, k, v});
    return repeated->attend(q, k, v);
  }

  static tensor_list backward(AutogradContext* context, const tensor_list& gradients) {
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

/// Rotates pairs of features, half a head apart, by an angle of position times base^(-2i/d) (Su et al.,
/// "RoFormer", 2021). \param positions of this rank's part of the sequence
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

/// softmax(q k^T / sqrt(d)) v per head, the heads side by side: [batch, positions, heads x features of v].
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

/// The same attention; its graph keeps q, k and v only, and its backward recomputes the rest with the same
/// dropout (`--recompute selective`). \param masks generator of dropout; empty: it draws nothing \pre the
/// function outlives its graphs
AttentionFunction recomputed_attention(AttentionFunction attention,
                                       const std::optional<at::Generator>& masks) {
  const auto repeated =
      std::make_shared<const RepeatedAttention>(RepeatedAttention{std::move(attention), masks});
  return [repeated](const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v) {
    return torch::GradMode::is_enabled() ? RecomputedAttentionFunction::apply(q, k, v, repeated.get())
                                         : repeated->attend(q, k, v);
  };
}

/// Gathers keys and values side by side, [batch, heads, positions, 2 head], of all parts of the sequence.
LayerFunction gather_parts(LayerBuilder& builder, const Layer& layer, std::int64_t head) {
  return [head, gather = builder.collective(layer.name + ".context")](const torch::Tensor& own) {
    const torch::Tensor flat = own.transpose(1, 2).flatten(2);  // collectives take positions second
    return gather(flat).unflatten(2, {-1, 2 * head}).transpose(1, 2);
  };
}

/// Attention with 1/c of the heads over the whole sequence. Arrays are [batch, heads, positions, head].
AttentionFunction split_heads(LayerBuilder& builder, const Layer& layer, AttentionFunction attend) {
  return [attend = std::move(attend), ranks = layer.sizes.at("context"),
          to_heads = builder.collective(layer.name + ".heads"),
          to_positions = builder.collective(layer.name + ".positions")](
             const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v) {
    std::vector<torch::Tensor> parts;
    std::vector<std::int64_t> heads;
    for (const torch::Tensor* one : {&q, &k, &v}) {
      const std::int64_t copies = ranks / one->size(1);
      parts.push_back((copies > 1 ? one->repeat_interleave(copies, 1) : *one).unflatten(1, {ranks, -1}));
      heads.push_back(parts.back().size(2));
    }
    // From [batch, ranks, heads, positions, head]: part r goes to rank r, and that of rank r arrives.
    const torch::Tensor whole =
        to_heads(torch::cat(parts, 2).transpose(0, 1).contiguous()).permute({1, 2, 0, 3, 4}).flatten(2, 3);
    const std::vector<torch::Tensor> own = whole.split_with_sizes(heads, 1);
    const torch::Tensor result = attend(own[0], own[1], own[2]);  // [batch, positions, heads * head]
    return to_positions(result.unflatten(1, {ranks, -1}).transpose(0, 1).contiguous())
        .permute({1, 2, 0, 3})
        .flatten(2);
  };
}

AttentionFunction ring_of(LayerBuilder& builder, const Layer& layer) {
  const auto ring = std::make_shared<AttentionRing>();
  ring->rank = builder.part().context;
  ring->causal = layer.sizes.at("causal") != 0;
  ring->model = &builder.target();
  for (const bool backward : {false, true})
    for (std::int64_t step = 0; step + (backward ? 0 : 1) < layer.sizes.at("context"); ++step) {
      const std::string name = layer.name + ".context." + std::to_string(step);
      (backward ? ring->backward : ring->forward)
          .push_back(
              {builder.collective_index(name, backward), builder.collective_index(name + ".end", backward)});
    }
  const std::int64_t positions = layer.input.at(0);
  if (ring->causal)
    ring->future = torch::ones({positions, positions}, builder.on_device(torch::kBool)).triu(1);
  ring->sums = builder.options().dtype() == torch::kFloat64 ? torch::kFloat64 : torch::kFloat32;
  return [ring](const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v) {
    return RingAttention::apply(q, k, v, ring.get());
  };
}

/// Part of attention that `--recompute selective` recomputes. \param percent of the probabilities that are
/// dropped
AttentionFunction core_attention(LayerBuilder& builder, AttentionForm form, std::int64_t percent) {
  form.drop = dropout(percent, builder.masks());
  AttentionFunction attend = attention(form, builder.options());
  if (builder.model().recomputed_part != RecomputedPart::kCoreAttention) return attend;
  return recomputed_attention(std::move(attend), percent > 0 ? std::optional(builder.masks()) : std::nullopt);
}

/// softmax(q k^T / sqrt(d)) v per head, over [batch, sequence, hidden]. q, k and v are computed in this
/// order, by three projections or by one that gives all, so that gradients of value become ready first and
/// those of query last. Probabilities are stored, `flash` or not, except by LibTorch 2 on a GPU.
LayerFunction build_attention(LayerBuilder& builder, const Layer& layer) {
  const auto flag = [&](const char* name) { return layer.sizes.at(name) != 0; };
  const bool fused = flag("fused");
  for (const char* attribute : {"wide_norms", "sinks", "gather_kv_again"})
    if (flag(attribute)) throw CapabilityError("attention with {} is forecast, not trained", attribute);
  std::vector<LayerFunction> projections;
  for (const std::string& part :
       fused ? std::vector<std::string>{"c_attn"}
             : std::vector<std::string>{layer.texts.at("query"), layer.texts.at("key"),
                                        layer.texts.at("value")})
    projections.push_back(builder.projection(full_name(layer, part), flag("bias")));
  const std::int64_t sequence = layer.input.at(0);
  const std::int64_t heads = layer.sizes.at("heads"), head = layer.output.at(1) / heads;
  const LayerFunction same = [](const torch::Tensor& x) { return x; };
  const LayerFunction q_norm = flag("norms") ? builder.rms_norm(full_name(layer, "q_norm")) : same;
  const LayerFunction k_norm = flag("norms") ? builder.rms_norm(full_name(layer, "k_norm")) : same;
  const std::int64_t ranks = layer.sizes.at("context");
  const std::vector<std::int64_t> positions = builder.model().positions(builder.part().context, sequence);
  const LayerFunction rotate = flag("rotary") ? rotation(positions, head, builder.options()) : same;
  const bool ring = builder.model().parallel.ring, by_heads = builder.model().parallel.ulysses;
  const std::int64_t sharing = heads / std::max(layer.sizes.at("kv_heads"), by_heads ? ranks : 0);
  const LayerFunction gather =
      ranks > 1 && !ring && !by_heads ? gather_parts(builder, layer, head) : LayerFunction();
  const std::int64_t dropped = layer.sizes.at("dropout");
  const AttentionForm form{.queries = by_heads ? ranks * sequence : sequence,
                           .keys = ranks * sequence,
                           .sharing = sharing,
                           .first = by_heads ? 0 : positions.front(),
                           .causal = flag("causal"),
                           .padding_mask = flag("padding_mask"),
                           .fuses = flag("flash") && (ranks == 1 || by_heads) && dropped == 0};
  AttentionFunction weigh = ring ? ring_of(builder, layer) : core_attention(builder, form, dropped);
  if (by_heads) weigh = split_heads(builder, layer, std::move(weigh));
  return [=](const torch::Tensor& x) {
    auto parts = transformed(projections, [&](const LayerFunction& project) { return project(x); });
    if (fused) parts = parts.front().chunk(3, -1);
    // [batch, sequence, heads * head] to [batch, heads, sequence, head]
    const auto by_head = [&](std::size_t part) {
      return parts[part].view({x.size(0), x.size(1), -1, head}).transpose(1, 2);
    };
    const torch::Tensor queries = rotate(q_norm(by_head(0)));
    torch::Tensor keys = rotate(k_norm(by_head(1))), values = by_head(2);
    if (gather) {
      const std::vector<torch::Tensor> both = gather(torch::cat({keys, values}, -1)).chunk(2, -1);
      keys = both[0];
      values = both[1];
    }
    return weigh(queries, keys, values);
  };
}

/// Multi-head latent attention as in transformers: per head [k_n, k_r], with the rotary part k_r shared by
/// all heads. Queries are computed before keys and values, so that gradients of those become ready first.
/// Tensor-parallel ranks with parts of the sequence gather the latents (Layer::body).
LayerFunction build_latent_attention(LayerBuilder& builder, const Layer& layer) {
  const auto size = [&](const char* key) { return layer.sizes.at(key); };
  const std::int64_t sequence = layer.input.at(0), heads = size("heads");
  const std::int64_t nope = size("nope"), rope = size("rope"), value = size("value"), rank = size("kv_rank");
  const auto part = [&](const char* name) { return builder.projection(full_name(layer, name)); };
  const auto norm = [&](const char* name) { return builder.rms_norm(full_name(layer, name)); };
  const std::vector<LayerFunction> gather = builder.chain(layer.body);
  std::vector<LayerFunction> queries;
  if (size("q_rank") > 0) queries = {part("q_a_proj"), norm("q_a_layernorm")};
  const LayerFunction up_queries = part(queries.empty() ? "q_proj" : "q_b_proj");
  if (gather.empty()) queries.push_back(up_queries);
  const LayerFunction down = part("kv_a_proj_with_mqa"), latent_norm = norm("kv_a_layernorm"),
                      up = part("kv_b_proj");
  const LayerFunction rotate = rotation(builder.model().positions(0, sequence), rope, builder.options());
  const AttentionFunction weigh = core_attention(
      builder, {.queries = sequence, .keys = sequence, .causal = true, .fuses = size("flash") != 0},
      size("dropout"));
  return [=](const torch::Tensor& x) {
    const auto by_head = [&](const torch::Tensor& all) {
      return all.view({x.size(0), sequence, heads, -1}).transpose(1, 2);
    };
    torch::Tensor wanted = run(queries, x);
    std::vector<torch::Tensor> latent = down(x).split_with_sizes({rank, rope}, -1);
    latent[0] = latent_norm(latent[0]);
    if (!gather.empty()) {
      const std::int64_t width = wanted.size(-1);
      latent = run(gather, torch::cat({wanted, latent[0], latent[1]}, -1))
                   .split_with_sizes({width, rank, rope}, -1);
      wanted = up_queries(latent.front());
      latent.erase(latent.begin());
    }
    const torch::Tensor turned = rotate(latent[1].unsqueeze(1)).expand({-1, heads, -1, -1});
    const std::vector<torch::Tensor> q = by_head(wanted).split_with_sizes({nope, rope}, -1);
    const std::vector<torch::Tensor> kv = by_head(up(latent[0])).split_with_sizes({nope, value}, -1);
    return weigh(torch::cat({q[0], rotate(q[1])}, -1), torch::cat({kv[0], turned}, -1), kv[1]);
  };
}

}  // namespace

const LayerTable kAttentionLayers{{"self_attention", &build_attention},
                                  {"latent_attention", &build_latent_attention}};

}  // namespace stepcast
