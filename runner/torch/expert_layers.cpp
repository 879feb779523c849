#include <limits>

#include "core/error.hpp"
#include "core/ranges.hpp"
#include "models/layer.hpp"
#include "runner/torch/layer_builder.hpp"

namespace stepcast {
namespace {

/// Draws the random numbers of `feed_forward` for an expert on another rank.
void skip_feed_forward(LayerBuilder& builder, const Layer& layer) {
  const torch::Tensor drawn =
      torch::empty({layer.sizes.at("feed_forward") * layer.input.at(1)}, builder.on_device(torch::kFloat64));
  for (std::size_t part = 0; part < expert_parts(layer).size(); ++part)
    drawn.normal_(0.0, 1.0, builder.generator());
}

LayerFunction feed_forward(LayerBuilder& builder, const Layer& layer, const std::string& prefix) {
  const auto part = [&](const char* which) {
    return builder.projection(full_name(layer, prefix + layer.texts.at(which)));
  };
  if (layer.sizes.at("gated") == 0)
    return [up = part("up"), down = part("down"),
            squared = layer.sizes.at("squared") != 0](const torch::Tensor& x) {
      return down(squared ? torch::relu(up(x)).square() : torch::gelu(up(x)));
    };
  return [gate = part("gate"), up = part("up"), down = part("down")](const torch::Tensor& x) {
    const torch::Tensor factor = torch::silu(gate(x));
    return down(factor * up(x));
  };
}

/// Experts on this rank.
std::vector<LayerFunction> own_experts(LayerBuilder& builder, const Layer& layer) {
  const std::int64_t own = layer.sizes.at("experts") / layer.sizes.at("ranks");
  const std::int64_t first = layer.sizes.at("ranks") > 1 ? builder.part().expert * own : 0;
  std::vector<LayerFunction> experts;
  for (std::int64_t i = 0; i < layer.sizes.at("experts"); ++i)
    if (i >= first && i < first + own)
      experts.push_back(feed_forward(builder, layer, "experts." + std::to_string(i - first) + "."));
    else
      skip_feed_forward(builder, layer);
  return experts;
}

/// Weights of the experts that each token chose, and their indices: [..., active] each.
using Router = std::function<std::pair<torch::Tensor, torch::Tensor>(const torch::Tensor&)>;

/// Softmax over the best `active` scores. With `sigmoid` (DeepSeek-V3, 2024) the choice is by sigmoids plus a
/// bias, among the groups with the largest best two; the weights are the sigmoids alone, normalised to 1.
Router route(LayerBuilder& builder, const Layer& layer) {
  const std::string name = full_name(layer, layer.texts.at("router"));
  const LayerFunction scores_of = builder.projection(name);
  const std::int64_t active = layer.sizes.at("active");
  if (layer.sizes.at("sigmoid") == 0)
    return [=](const torch::Tensor& x) {
      const auto [scores, chosen] = scores_of(x).topk(active, -1);
      return std::pair(torch::softmax(scores, -1), chosen);
    };
  return [=, bias = builder.buffer(name + ".e_score_correction_bias"), groups = layer.sizes.at("groups"),
          kept = layer.sizes.at("chosen_groups")](const torch::Tensor& x) {
    const torch::Tensor scores = torch::sigmoid(scores_of(x));
    torch::Tensor wanted = scores.detach() + bias;
    if (groups > 1) {
      const torch::Tensor grouped = wanted.unflatten(-1, {groups, -1});
      const torch::Tensor best = std::get<0>(grouped.topk(2, -1)).sum(-1);
      const torch::Tensor out =
          torch::ones_like(best, torch::kBool).scatter(-1, std::get<1>(best.topk(kept, -1)), false);
      wanted = grouped.masked_fill(out.unsqueeze(-1), -std::numeric_limits<double>::infinity()).flatten(-2);
    }
    const torch::Tensor chosen = std::get<1>(wanted.topk(active, -1)), weights = scores.gather(-1, chosen);
    return std::pair(weights / weights.sum(-1, true), chosen);
  };
}

/// Results of the experts of all ranks for rows [experts, rows of each, width].
LayerFunction of_all_experts(LayerBuilder& builder, const Layer& layer,
                             const std::vector<LayerFunction>& own) {
  const auto collective = [&](const char* what) { return builder.collective(layer.name + what); };
  return [own, ranks = layer.sizes.at("ranks"), dispatch = collective(".dispatch"),
          gather = collective(".gather"), sum = collective(".sum"),
          combine = collective(".combine")](const torch::Tensor& rows) {
    const torch::Tensor arrived = gather(dispatch(rows)).unflatten(0, {ranks, -1});  // rank by rank
    const auto results =
        transformed(whole_numbers(0, own.size()), [&](int i) { return own[i](arrived.select(1, i)); });
    return combine(sum(torch::stack(results, 1).flatten(0, 1)));
  };
}

/// The same with `expert_capacity` places for tokens of each sequence in every expert, taken in the order of
/// positions: sizes do not depend on the choice of tokens.
LayerFunction fill_places(LayerBuilder& builder, const Layer& layer, const Router& router,
                          const std::vector<LayerFunction>& own) {
  return [router, compute = of_all_experts(builder, layer, own), experts = layer.sizes.at("experts"),
          places = expert_capacity(layer)](const torch::Tensor& input) {
    const std::int64_t samples = input.size(0), tokens = input.size(1);
    const torch::Tensor x = input.flatten(0, 1);
    const auto [weights_of_chosen, chosen] = router(input);
    const torch::Tensor none = torch::zeros({samples, tokens, experts}, input.options());
    const torch::Tensor share = none.scatter(2, chosen, weights_of_chosen);
    const torch::Tensor chosen_by = none.to(torch::kInt64).scatter(2, chosen, 1);
    const torch::Tensor place = chosen_by.cumsum(1).sub(1);
    // Number of (sample, token, expert) for each place that is taken.
    const torch::Tensor taken =
        chosen_by.gt(0).logical_and(place.lt(places)).flatten().nonzero().select(1, 0);
    const torch::Tensor token = taken.div(experts, "floor"), expert = taken.remainder(experts);
    const torch::Tensor slot =
        (expert * samples + token.div(tokens, "floor")) * places + place.flatten().index_select(0, taken);
    const torch::Tensor rows = torch::zeros({experts * samples * places, x.size(1)}, x.options())
                                   .index_add(0, slot, x.index_select(0, token));
    const torch::Tensor results = compute(rows.view({experts, samples * places, -1})).flatten(0, 1);
    const torch::Tensor weights = share.flatten().index_select(0, taken).unsqueeze(1);
    return torch::zeros_like(x).index_add(0, token, weights * results.index_select(0, slot)).view_as(input);
  };
}

/// Weighted sum of the chosen experts. Experts that no token chose compute on no rows, so that all their
/// gradients become ready.
LayerFunction build_routed(LayerBuilder& builder, const Layer& layer) {
  const Router router = route(builder, layer);
  const std::vector<LayerFunction> experts = own_experts(builder, layer);
  if (expert_capacity(layer) > 0) return fill_places(builder, layer, router, experts);
  if (layer.sizes.at("ranks") * layer.sizes.at("tensor") > 1)
    throw CapabilityError(builder.model().specification +
                          ": which experts tokens choose decides what ranks that share them send, and is "
                          "known only in a run; with capacity=125, percent of an even share, it is bounded");
  return [=](const torch::Tensor& input) {
    const torch::Tensor x = input.flatten(0, 1);
    const auto [weights, chosen] = router(x);
    torch::Tensor y = torch::zeros_like(x);
    for (std::size_t i = 0; i < experts.size(); ++i) {
      const torch::Tensor places = (chosen == static_cast<std::int64_t>(i)).nonzero();
      const torch::Tensor rows = places.select(1, 0);
      const torch::Tensor share = weights.index({rows, places.select(1, 1)}).unsqueeze(1);
      y = y.index_add(0, rows, share * experts[i](x.index_select(0, rows)));
    }
    return y.view_as(input);
  };
}

/// Adds the shared expert, which comes after the others. Tensor-parallel ranks that divide it gather its
/// input and sum its outputs (Layer::body).
LayerFunction build_experts(LayerBuilder& builder, const Layer& layer) {
  for (const char* attribute : {"bias", "shared_gate", "latent"})
    if (layer.sizes.at(attribute) != 0)
      throw CapabilityError("experts with {} are forecast, not trained", attribute);
  const LayerFunction routed = build_routed(builder, layer);
  if (layer.sizes.at("shared") == 0) return routed;
  std::vector<LayerFunction> shared = builder.chain(layer.body);
  shared.insert(shared.begin() + (shared.empty() ? 0 : 1), feed_forward(builder, layer, "shared_experts."));
  return [routed, shared](const torch::Tensor& input) {
    const torch::Tensor y = routed(input);
    return y + run(shared, input);
  };
}

}  // namespace

const LayerTable kExpertLayers{{"experts", &build_experts}};

}  // namespace stepcast
