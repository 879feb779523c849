#include <algorithm>

#include "models/layer_kinds.hpp"

/// Mixture of experts; E experts, K of them active for a token, f wide; shared ones f_s.
namespace stepcast {

std::vector<const char*> expert_parts(const Layer& layer) {
  return flag(layer, "gated") ? std::vector{"gate", "up", "down"} : std::vector{"up", "down"};
}

namespace {

Shape experts_output(const Layer& layer) {
  const std::int64_t experts = size(layer, "experts"), active = size(layer, "active");
  if (const std::int64_t ranks = size(layer, "ranks"), most = 100 * ranks;
      ranks > 1 && size(layer, "imbalance") > most)
    throw InputError("imbalance {}: of {} ranks one has at most {} percent of the mean",
                     size(layer, "imbalance"), ranks, most);
  if (size(layer, "imbalance") > 100 && size(layer, "capacity") > 0)
    throw InputError("imbalance {} has no effect with capacity {}, which bounds every expert's tokens",
                     size(layer, "imbalance"), size(layer, "capacity"));
  if (flag(layer, "squared") && flag(layer, "gated"))
    throw InputError("squared=1 has no effect on experts with gates; set expert_gated=0");
  const std::int64_t groups = size(layer, "groups"), chosen = size(layer, "chosen_groups");
  if (active > experts) throw InputError("active {} is more than there are experts, {}", active, experts);
  expect_divisible("experts", experts, size(layer, "ranks"));
  expect_divisible("feed_forward", size(layer, "feed_forward"), size(layer, "tensor"));
  if (experts % groups != 0 || (groups > 1 && experts / groups < 2))
    throw InputError("experts {} cannot be divided into {} groups of two or more", experts, groups);
  if (chosen > groups || active > chosen * (experts / groups))
    throw InputError("active {} experts cannot be among {} of {} groups", active, chosen, groups);
  return layer.input;
}

/// Added to the scores for the choice alone, and moved by no gradient (DeepSeek-V3); softmax has no buffers.
std::vector<LayerTensor> experts_buffers(const Layer& layer) {
  if (!flag(layer, "sigmoid")) return {};
  return {{layer.texts.at("router") + ".e_score_correction_bias", {size(layer, "experts")}}};
}

std::vector<LayerTensor> experts_parameters(const Layer& layer) {
  const std::int64_t hidden = layer.input[1], ranks = size(layer, "ranks"), tensor = size(layer, "tensor");
  std::vector<LayerTensor> result{{layer.texts.at("router") + ".weight", {size(layer, "experts"), hidden}}};
  const bool expert_bias = flag(layer, "bias");
  if (expert_bias) result.push_back({layer.texts.at("router") + ".bias", {size(layer, "experts")}});
  const auto add_feed_forward = [&](const std::string& prefix, std::int64_t width, bool expert) {
    for (const char* part : expert_parts(layer)) {
      const bool down = std::string_view(part) == "down";
      const bool shared = prefix.starts_with("shared");
      const bool divided = shared ? !layer.body.empty() : tensor > 1;
      const std::int64_t outer = shared ? hidden : expert_width(layer);
      result.push_back({.suffix = prefix + layer.texts.at(part) + ".weight",
                        .shape = down ? Shape{outer, width} : Shape{width, outer},
                        .expert = expert,
                        .divided = divided ? static_cast<int>(down) : -1});
      if (expert_bias)
        result.push_back({.suffix = prefix + layer.texts.at(part) + ".bias",
                          .shape = {down ? outer : width},
                          .expert = expert,
                          .divided = divided && !down ? 0 : -1});
    }
  };
  for (std::int64_t i = 0; i < size(layer, "experts") / ranks; ++i)
    add_feed_forward("experts." + std::to_string(i) + ".", size(layer, "feed_forward") / tensor,
                     ranks * tensor > 1);
  if (flag(layer, "shared")) add_feed_forward("shared_experts.", size(layer, "shared"), false);
  if (flag(layer, "shared_gate")) result.push_back({"shared_expert_gate.weight", {1, hidden}});
  if (const std::int64_t latent = size(layer, "latent"); latent > 0) {
    result.push_back({"fc1_latent_proj.weight", {latent, hidden}});
    result.push_back({"fc2_latent_proj.weight", {hidden, latent}});
  }
  return result;
}

/// Adds the weighted bias of the second GEMM to its output, y + p b, as Megatron does: kernel by kernel and
/// expert by expert, in fp32 since the router's p is (`_apply_bias` in
/// megatron/core/transformer/moe/experts.py). Accesses per element: y is read, p b written; both are added,
/// joined with those of other experts, and cast back. The backward casts the gradient and joins its parts; p
/// and b take a product and a sum each.
void add_weighted_bias(double elements, int experts, LayerCost& cost) {
  constexpr double kFloat32 = 6.0, kFloat32Backward = 8.0, kOther = 2.0, kOtherBackward = 4.0;
  cost.separate.push_back(moves(kFloat32 * elements, kFloat32Backward * elements, 2 * experts + 2,
                                4 * experts + 3, Moved::kFloat32, KernelRole::kExpertBias));
  cost.separate.push_back(
      moves(kOther * elements, kOtherBackward * elements, 0, 0, Moved::kCompute, KernelRole::kExpertBias));
}

/// Adds the clamps of experts with a bias (GPT-OSS), as Megatron runs them before the fused activation: of
/// both halves of the first GEMM's output, joined again, 8 accesses per element of a half; the backward
/// divides the gradient, compares and selects (`weighted_bias_quick_geglu_impl` in
/// megatron/core/fusions/fused_bias_geglu.py). What it joins stays for the backward.
void add_clamps(double elements, LayerCost& cost) {
  // forward: two clamps, joining; backward: dividing, three masks of 1 B, joining two of them, two selections
  const double forward = (2.0 + 2.0 + 4.0) * elements, backward = (4.0 + 4.5 + 1.5 + 5.0) * elements;
  keep(2.0 * elements, cost.kernels.emplace_back(
                           moves(forward, backward, 3, 7, Moved::kStrided, KernelRole::kExpertActivation)));
}

/// Adds copies of tokens to their experts and back; `active` rows of each position.
void add_permutation(const Layer& layer, double active, LayerCost& cost) {
  const auto s = static_cast<double>(layer.input[0]), h = static_cast<double>(expert_width(layer));
  const double tensor = number(layer, "tensor"), own = number(layer, "experts") / number(layer, "ranks");
  const bool engine = flag(layer, kTransformerEngine);
  const double sorts =
      (engine || size(layer, "ranks") > 1) && own > 1.0 ? 4.0 * s * active * tensor * h : 0.0;
  if (!engine) {
    const double copied = 7.0 * s * active * h + sorts;
    return cost.separate.push_back(moves(copied, 2.0 * copied, 0));
  }
  if (flag(layer, "bias")) add_weighted_bias(tensor * s * active * h, static_cast<int>(own), cost);
  const double permuted = s * 2.0 * (1.0 + active) * h;
  cost.separate.push_back(moves(permuted, permuted, 0));
  if (sorts == 0.0) return;
  cost.separate.push_back(moves(sorts, sorts, 0));
  cost.separate.back().role = KernelRole::kSort;
}

/// Sum over the K experts e of a token of g_e(x) down_e(silu(gate_e(x)) * up_e(x)), and the shared ones.
///
///     flop = 2 s h E + 6 s h (K f + f_s), without gates 2 s h E + 4 s h (K f + f_s)
///
/// Traffic in elements, forward: the router s (h + 3 E), with `sigmoid` 4 s E more (the function, and the
/// bias of the choice) and with `groups` 4 s E (the best two of each group, and masking the others); per
/// token and active expert its copy in and out 4 h, three GEMMs 3 (h + f), SiLU and gate 5 f, weighting 3 h.
/// Backward twice that. Saved: x, the router's probabilities, and per token and active expert x, y and four
/// times f. All experts' weights are read, which holds for batches with more tokens than experts.
///
/// Without `gated` an expert is down_e(gelu(up_e(x))): two GEMMs, 2 f for GELU, and twice f saved. With
/// `squared` relu(up_e(x))^2 is in GELU's place, one kernel whose backward moves 3 f.
///
/// Megatron with Transformer Engine permutes with 2 (1 + K) h and sorts with 4 K h, its backward as much, and
/// weights in the activation; see add_weighted_bias() for experts with a bias.
///
/// Transformer Engine saves neither y nor the inputs of the product (but GELU's output, which the router's
/// number then multiplies), and per expert the router's numbers and a map of rows. While its combine runs,
/// tokens wait in four places, in the backward in two.
///
/// With a capacity of C tokens, K is C E/s. Each of r ranks has E/r experts and as many tokens, from all r,
/// as it would have of its own alone. With several experts, rows that arrive rank by rank are sorted by
/// expert and back, 4 h each. With t ranks that divide every expert, each computes f/t of the rows of all t,
/// which are gathered before (and saved) and summed after: x and these 4 h count t times. Frozen experts do
/// not save the inputs of their GEMMs.
///
/// Tensor-parallel ranks divide the shared expert (megatron/core/transformer/moe/shared_experts.py): each
/// computes f_s/t for the positions of all t, which Layer::body gathers before and sums after.
///
/// With a latent of width l, h is l in all terms of the K experts, and two projections of every token add
/// 4 s h l flop; both their inputs are saved.
///
/// With `imbalance` the costs are those of the rank with the most tokens: rows, messages and saved bytes are
/// multiplied by imbalance / 100. Flop of tokens beyond the mean, and of
/// places that a capacity above 100 leaves empty, do not count in MFU.
void add_experts(const Layer& layer, LayerCost& cost) {
  const auto s = static_cast<double>(layer.input[0]), hidden = static_cast<double>(layer.input[1]);
  const auto h = static_cast<double>(expert_width(layer));  // of what is dispatched
  const double experts = number(layer, "experts"), own = experts / number(layer, "ranks");
  const double active = static_cast<double>(expert_rows(layer)) / s;
  const double routed = number(layer, "feed_forward"), shared = number(layer, "shared");
  const double tensor = number(layer, "tensor");
  const double sharers = layer.body.empty() ? 1.0 : number(layer.body.front(), "ranks");
  const bool sigmoid = flag(layer, "sigmoid"), groups = size(layer, "groups") > 1;
  const double wide = active * routed + sharers * shared;
  const double routes = (sigmoid ? 4.0 : 0.0) + (groups ? 4.0 : 0.0);
  const double useful = std::min(1.0, number(layer, "active") / active);
  cost.kernels.front() = multiplies({.rows = s, .columns = experts, .depth = hidden, .chooses = true});
  const bool engine = flag(layer, kTransformerEngine), gated = flag(layer, "gated");
  const bool squared = flag(layer, "squared");
  const double inputs = gated ? 2.0 : 1.0, trained = layer.frozen ? 0.0 : 1.0;  // inputs of the activation
  const auto add_feed_forward = [&](double rows, double width, double times, KernelRole role) {
    const double joined = engine ? inputs : 1.0;  // gate and up are one GEMM
    const double outer = role == KernelRole::kSharedExpert ? hidden : h;
    cost.kernels.push_back(multiplies({rows, joined * width, outer, 0.0, inputs / joined * times}));
    cost.kernels.back().role = role;
    cost.kernels.push_back(multiplies({rows, outer, width, 0.0, times}));
    if (role == KernelRole::kSharedExpert) return;
    for (std::size_t i = cost.kernels.size() - 2; i < cost.kernels.size(); ++i)
      cost.kernels[i].useful = useful, cost.kernels[i].gemm()->expert = true;
  };
  const auto add_activation = [&](double elements, int launches, KernelRole role) {
    const double moved = (3.0 * inputs - 1.0) * elements;
    Kernel& kernel = cost.kernels.emplace_back(moves(moved, squared ? 1.5 * moved : 2.0 * moved, launches));
    kernel.role = role;
    const double kept = role == KernelRole::kSharedExpert ? inputs + 1.0 : squared ? 1.0 : 3.0 - inputs;
    if (engine) keep((kept - 1.0) * elements, kernel), keep_input(trained * elements, kernel);
  };
  add_feed_forward(tensor * s * active / own, routed / tensor, own, KernelRole::kOther);
  const int parts = engine ? 1 : static_cast<int>(own), each = gated ? 5 : 2 - static_cast<int>(squared);
  add_activation(s * active * routed, parts * each, KernelRole::kExpertActivation);
  if (engine && gated && flag(layer, "bias")) add_clamps(s * active * routed, cost);
  if (shared > 0.0) {
    add_feed_forward(sharers * s, shared, 1.0, KernelRole::kSharedExpert);
    add_activation(sharers * s * shared, gated ? 3 : 1, KernelRole::kSharedExpert);
  }
  if (flag(layer, "latent")) {
    cost.kernels.push_back(multiplies({s, h, hidden}));
    cost.kernels.push_back(multiplies({s, hidden, h}));
    keep_input(trained * s * h, cost.kernels.back());
  }
  const double moved = s * (2.0 + routes) * experts;
  Kernel& rest =
      cost.kernels.emplace_back(moves(moved, 2.0 * moved, 3 + (sigmoid ? 2 : 0) + (groups ? 5 : 0)));
  if (engine) {
    const double rows = s * active;
    keep_input(trained * tensor * rows * h, rest);
    keep(inputs * rows * routed, rest);
    keep_in_float32(s * (2.0 * experts + 1.0) + 3.0 * s * experts + 0.5 * rows + s, rest);
    cost.workspace = {float32_bytes(4.0 * rows * h + s * h), float32_bytes(2.0 * rows * h)};
  } else {
    keep(s * (experts + active * (trained * tensor + 1.0) * h + (2.0 * inputs - 1.0 + trained) * wide), rest);
  }
  add_permutation(layer, active, cost);
}

}  // namespace

std::int64_t expert_width(const Layer& layer) {
  return flag(layer, "latent") ? size(layer, "latent") : layer.input[1];
}

std::int64_t expert_capacity(const Layer& layer) {
  const std::int64_t s = layer.input[0], experts = 100 * size(layer, "experts");
  const std::int64_t shares = size(layer, "capacity") * s * size(layer, "active");
  return std::min(s, (shares + experts - 1) / experts);
}

std::int64_t expert_rows(const Layer& layer) {
  const std::int64_t capacity = expert_capacity(layer);
  if (capacity > 0) return size(layer, "experts") * capacity;
  const std::int64_t even = layer.input[0] * size(layer, "active");
  return size(layer, "ranks") == 1 ? even : even * size(layer, "imbalance") / 100;
}

std::vector<LayerKind> expert_kinds() {
  return {{"experts", experts_output, experts_parameters, add_experts, experts_buffers}};
}

}  // namespace stepcast
