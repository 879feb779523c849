#include "runner/torch/torch_model.hpp"

#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>

#include "core/error.hpp"
#include "models/layer.hpp"
#include "runner/execute/memory_account.hpp"
#include "runner/torch/attention_functions.hpp"
#include "runner/torch/exchange_functions.hpp"
#include "runner/torch/ring_attention.hpp"
#include "runner/torch/tensor_memory.hpp"

namespace stepcast {
namespace {

torch::Tensor run(const std::vector<LayerFunction>& layers, torch::Tensor value) {
  for (const LayerFunction& layer : layers) value = layer(value);
  return value;
}

}  // namespace

LayerFunction dropout(std::int64_t percent, const at::Generator& generator) {
  if (percent == 0) return [](const torch::Tensor& x) { return x; };
  return [kept = 1.0 - static_cast<double>(percent) / 100.0, generator](const torch::Tensor& x) {
    return x * torch::empty_like(x).bernoulli_(kept, generator).div_(kept);
  };
}

/// Turns the layers of a Model into functions over tensors and creates the tensors they use.
class TorchModel::Builder {
 public:
  Builder(TorchModel& target, unsigned seed)
      : target_(target), generator_(target.numbers_.generator(seed)), masks_(target.masks_) {
    const Model& model = target.model_;
    target.parameters_.resize(model.parameters.size());
    target.buffers_.resize(model.buffers.size());
    for (std::size_t i = 0; i < model.parameters.size(); ++i) parameter_index_[model.parameters[i].name] = i;
    for (std::size_t i = 0; i < model.buffers.size(); ++i) buffer_index_[model.buffers[i].name] = i;
    for (std::size_t i = 0; i < model.exchanges.size(); ++i)
      exchange_index_[{model.exchanges[i].name, model.exchanges[i].backward}] = static_cast<int>(i);
    make_buffers();
  }

  std::vector<LayerFunction> chain(const std::vector<Layer>& layers) {
    std::vector<LayerFunction> functions;
    for (const Layer& layer : layers) functions.push_back(build(layer));
    return functions;
  }

  /// \throws std::logic_error when a parameter of the Model belongs to no layer
  void check_complete() const {
    for (const auto& [name, index] : parameter_index_)
      if (!made_.contains(index)) throw std::logic_error("no layer owns parameter " + name);
  }

 private:
  LayerFunction build(const Layer& layer) {
    using Build = LayerFunction (Builder::*)(const Layer&);
    static const std::map<std::string, Build> kKinds{{"conv", &Builder::conv},
                                                     {"linear", &Builder::linear},
                                                     {"batch_norm", &Builder::batch_norm},
                                                     {"max_pool", &Builder::max_pool},
                                                     {"adaptive_avg_pool", &Builder::average},
                                                     {"residual", &Builder::residual},
                                                     {"embedding", &Builder::embed},
                                                     {"product", &Builder::product},
                                                     {"position_embedding", &Builder::add_positions},
                                                     {"layer_norm", &Builder::normalise},
                                                     {"rms_norm", &Builder::normalise_rms},
                                                     {"experts", &Builder::choose_experts},
                                                     {"dropout", &Builder::drop},
                                                     {"self_attention", &Builder::attend},
                                                     {"latent_attention", &Builder::attend_latent},
                                                     {"tensor_enter", &Builder::enter},
                                                     {"tensor_leave", &Builder::leave},
                                                     {"tied_linear", &Builder::tie}};
    static const std::map<std::string, LayerFunction> kWithoutTensors{
        {"relu", [](const torch::Tensor& x) { return torch::relu(x); }},
        {"gelu", [](const torch::Tensor& x) { return torch::gelu(x); }},
        {"silu", [](const torch::Tensor& x) { return torch::silu(x); }},
        {"tanh", [](const torch::Tensor& x) { return torch::tanh(x); }},
        {"flatten", [](const torch::Tensor& x) { return x.flatten(1); }},
        {"first_token", [](const torch::Tensor& x) { return x.select(1, 0); }}};
    if (const auto kind = kWithoutTensors.find(layer.kind); kind != kWithoutTensors.end())
      return kind->second;
    if (const auto kind = kKinds.find(layer.kind); kind != kKinds.end()) return (this->*kind->second)(layer);
    throw InputError(target_.model_.path + ": layer " + layer.name + ": the runner has no kind '" +
                     layer.kind + "'");
  }

  /// Buffers are parts of one array per dtype, so that broadcasting them is one call without copies.
  void make_buffers() {
    const MemoryScope scope(MemoryCategory::kParameters);
    const Model& model = target_.model_;
    std::array<std::int64_t, 2> elements{};
    for (const Buffer& buffer : model.buffers) elements[buffer.is_integer ? 1 : 0] += numel(buffer.shape);
    const std::array<torch::ScalarType, 2> types{target_.dtype(), torch::kInt64};
    for (std::size_t group = 0; group < 2; ++group)
      if (elements[group] > 0)
        target_.flat_buffers_[group] = torch::zeros({elements[group]}, on_device(types[group]));
    std::array<std::int64_t, 2> offset{};
    for (std::size_t i = 0; i < model.buffers.size(); ++i) {
      const Buffer& buffer = model.buffers[i];
      const std::size_t group = buffer.is_integer ? 1 : 0;
      target_.buffers_[i] = target_.flat_buffers_[group]
                                .narrow(0, offset[group], numel(buffer.shape))
                                .view(torch::IntArrayRef(buffer.shape));
      offset[group] += numel(buffer.shape);
    }
  }

  [[nodiscard]] torch::TensorOptions on_device(torch::ScalarType type) const {
    return target_.numbers_.options().dtype(type);
  }

  /// Creates a parameter, zero so far.
  torch::Tensor parameter(const std::string& name) {
    const std::size_t index = parameter_index_.at(name);
    const MemoryScope parameters(MemoryCategory::kParameters);
    torch::Tensor value =
        torch::zeros(torch::IntArrayRef(target_.model_.parameters[index].shape), target_.numbers_.options())
            .requires_grad_();
    const MemoryScope gradients(MemoryCategory::kGradients);
    value.mutable_grad() = torch::zeros_like(value);
    target_.parameters_[index] = value;
    made_.insert(index);
    return value;
  }

  torch::Tensor buffer(const std::string& name) { return target_.buffers_[buffer_index_.at(name)]; }

  /// Drawn in float64 whatever the dtype; where ranks share it, the whole is drawn and this rank's part kept.
  torch::Tensor normal(const std::string& name) {
    constexpr double kDeviation = 0.02;
    const torch::NoGradGuard no_grad;
    torch::Tensor value = parameter(name);
    const std::int64_t dimension = target_.model_.parameters[parameter_index_.at(name)].shared_dimension;
    std::vector<std::int64_t> shape = value.sizes().vec();
    if (dimension >= 0) shape[static_cast<std::size_t>(dimension)] *= target_.model_.tensor;
    const torch::Tensor drawn =
        torch::empty(shape, on_device(torch::kFloat64)).normal_(0.0, kDeviation, generator_);
    value.copy_(dimension < 0 ? drawn
                              : drawn.narrow(dimension, target_.part_.share * value.size(dimension),
                                             value.size(dimension)));
    return value;
  }

  /// Number of an exchange; -1: there is none.
  [[nodiscard]] int exchange_index(const std::string& name, bool backward) const {
    const auto found = exchange_index_.find({name, backward});
    return found == exchange_index_.end() ? -1 : found->second;
  }

  /// What a layer makes of a parameter whose gradient is summed over the ranks that share the model; else itself.
  std::function<torch::Tensor()> summed(const std::string& name, const torch::Tensor& parameter) const {
    const int backward = exchange_index(name, true);
    if (backward < 0) return [parameter] { return parameter; };
    return [parameter, backward, model = &target_] { return put_together(*model, parameter, -1, backward); };
  }

  LayerFunction border(const Layer& layer) const {
    return [model = &target_, forward = exchange_index(layer.name, false),
            backward = exchange_index(layer.name, true)](const torch::Tensor& x) {
      return put_together(*model, x, forward, backward);
    };
  }

  LayerFunction enter(const Layer& layer) {
    const LayerFunction put = border(layer);
    if (layer.sizes.at("again") == 0) return put;
    return [put, given = given_](const torch::Tensor& x) {
      torch::Tensor whole = put(x);
      if (torch::GradMode::is_enabled()) *given = {whole.variable_data(), x.detach()};
      return whole;
    };
  }

  /// Without autograd nothing is kept that could be given up.
  LayerFunction leave_again(const Layer& layer) const {
    return [put = border(layer), given = given_, model = &target_,
            forward = exchange_index(layer.name, false), backward = exchange_index(layer.name, true),
            again = exchange_index(layer.name + kAgain, true)](const torch::Tensor& x) {
      if (!torch::GradMode::is_enabled()) return put(x);
      const GivenUp input = std::exchange(*given, {});
      return put_together_again(*model, x, forward, backward, again, input);
    };
  }

  LayerFunction leave(const Layer& layer) {
    const LayerFunction put = layer.sizes.at("again") == 0 ? border(layer) : leave_again(layer);
    if (layer.sizes.at("bias") == 0) return put;
    const std::string name = full_name(layer, "bias");
    return [put, bias = summed(name, parameter(name))](const torch::Tensor& x) {
      const torch::Tensor y = put(x);
      return y + bias();
    };
  }

  /// Weight and bias of a convolution or a linear layer; drawn in float64 whatever the dtype.
  std::pair<torch::Tensor, torch::Tensor> weights(const Layer& layer) {
    const bool tokens = target_.model_.input_kind == "tokens";
    torch::Tensor weight = tokens ? normal(layer.name + ".weight") : parameter(layer.name + ".weight");
    torch::Tensor bias = layer.sizes.at("bias") != 0 ? parameter(layer.name + ".bias") : torch::Tensor();
    if (tokens) return {weight, bias};
    const torch::NoGradGuard no_grad;
    const double bound = 1.0 / std::sqrt(static_cast<double>(weight[0].numel()));
    const auto draw = [&](torch::Tensor& tensor) {
      tensor.copy_(torch::empty_like(tensor, on_device(torch::kFloat64)).uniform_(-bound, bound, generator_));
    };
    draw(weight);
    if (bias.defined()) draw(bias);
    return {weight, bias};
  }

  LayerFunction conv(const Layer& layer) {
    const auto [weight, bias] = weights(layer);
    return [weight = weight, bias = bias, stride = layer.sizes.at("stride"),
            padding = layer.sizes.at("padding")](const torch::Tensor& x) {
      return torch::conv2d(x, weight, bias, stride, padding);
    };
  }

  LayerFunction linear(const Layer& layer) {
    const auto [weight, bias] = weights(layer);
    return [weight = weight, bias = bias](const torch::Tensor& x) { return torch::linear(x, weight, bias); };
  }

  LayerFunction batch_norm(const Layer& layer) {
    constexpr double kMomentum = 0.1;
    constexpr double kEpsilon = 1e-5;
    const torch::NoGradGuard no_grad;
    torch::Tensor weight = parameter(layer.name + ".weight");
    weight.fill_(1.0);
    const torch::Tensor bias = parameter(layer.name + ".bias");
    const torch::Tensor mean = buffer(layer.name + ".running_mean");
    torch::Tensor variance = buffer(layer.name + ".running_var");
    variance.fill_(1.0);
    torch::Tensor tracked = buffer(layer.name + ".num_batches_tracked");
    return [=](const torch::Tensor& x) {
      tracked.add_(1);
      return torch::batch_norm(x, weight, bias, mean, variance, true, kMomentum, kEpsilon, false);
    };
  }

  LayerFunction max_pool(const Layer& layer) {
    return [kernel = layer.sizes.at("kernel"), stride = layer.sizes.at("stride")](const torch::Tensor& x) {
      return torch::max_pool2d(x, kernel, stride);
    };
  }

  LayerFunction average(const Layer& layer) {
    return [out = layer.sizes.at("out")](const torch::Tensor& x) {
      return torch::adaptive_avg_pool2d(x, {out, out});
    };
  }

  LayerFunction residual(const Layer& layer) {
    return [body = chain(layer.body), shortcut = chain(layer.shortcut)](const torch::Tensor& x) {
      const torch::Tensor y = run(body, x);
      return y + run(shortcut, x);
    };
  }

  LayerFunction product(const Layer& layer) {
    return [gate = chain(layer.body), value = chain(layer.shortcut)](const torch::Tensor& x) {
      const torch::Tensor factor = run(gate, x);
      return factor * run(value, x);
    };
  }

  /// Token ids [batch, sequence], int64, to the sum of up to three rows per token: its own, of token type 0 where the
  /// model has token types, and of its position where it has a table of them.
  LayerFunction embed(const Layer& layer) {
    const auto table = [&](const char* kind) {
      return normal(full_name(layer, layer.texts.at(kind) + ".weight"));
    };
    const torch::Tensor word = table("word");
    const torch::Tensor position = layer.sizes.at("positions") > 0 ? table("position") : torch::Tensor();
    const torch::Tensor type = layer.sizes.at("types") > 0 ? table("type") : torch::Tensor();
    if (layer.texts.contains(kShared)) return own_words(word);
    return [word, position, type](const torch::Tensor& tokens) {
      torch::Tensor sum = torch::embedding(word, tokens);
      if (type.defined()) sum = sum + torch::embedding(type, torch::zeros_like(tokens));
      if (!position.defined()) return sum;
      const torch::Tensor positions = torch::arange(tokens.size(1), tokens.options()).unsqueeze(0);
      return sum + torch::embedding(position, positions);
    };
  }

  /// The rows of the words whose part of the table this rank has, 0 for all others.
  LayerFunction own_words(const torch::Tensor& table) const {
    return [table, first = target_.part_.share * table.size(0)](const torch::Tensor& tokens) {
      const torch::Tensor own = tokens - first;
      const torch::Tensor foreign = own.lt(0).logical_or(own.ge(table.size(0)));
      return torch::embedding(table, own.masked_fill(foreign, 0)).masked_fill(foreign.unsqueeze(-1), 0.0);
    };
  }

  LayerFunction add_positions(const Layer& layer) {
    const std::string name = layer.name + ".weight";
    const Model& model = target_.model_;
    const std::int64_t own = layer.input.front();
    const torch::Tensor positions =
        torch::tensor(model.positions(target_.part_.context, model.input.front()), on_device(torch::kInt64))
            .narrow(0, model.sequence_parallel ? target_.part_.share * own : 0, own);
    const auto table = summed(name, normal(name));
    if (model.ring)
      return [table, positions](const torch::Tensor& x) { return x + table().index_select(0, positions); };
    return [table, first = positions[0].item<std::int64_t>()](const torch::Tensor& x) {
      return x + table().narrow(0, first, x.size(1));
    };
  }

  LayerFunction normalise(const Layer& layer) {
    constexpr double kEpsilon = 1e-5;  // BERT's own is 1e-12, which changes no time
    const torch::NoGradGuard no_grad;
    torch::Tensor weight = parameter(layer.name + ".weight");
    weight.fill_(1.0);
    const torch::Tensor bias =
        layer.sizes.at("bias") != 0 ? parameter(layer.name + ".bias") : torch::Tensor();
    return [weight = summed(layer.name + ".weight", weight),
            bias = summed(layer.name + ".bias", bias)](const torch::Tensor& x) {
      const torch::Tensor scale = weight();
      return torch::layer_norm(x, {x.size(-1)}, scale, bias(), kEpsilon);
    };
  }

  /// x / sqrt(mean(x^2) + epsilon) * weight, over the last dimension.
  LayerFunction rms_norm(const std::string& name) {
    constexpr double kEpsilon = 1e-5;
    const torch::NoGradGuard no_grad;
    torch::Tensor weight = parameter(name + ".weight");
    weight.fill_(1.0);
    return [weight = summed(name + ".weight", weight)](const torch::Tensor& x) {
      return x * torch::rsqrt(x.square().mean(-1, true) + kEpsilon) * weight();
    };
  }

  LayerFunction normalise_rms(const Layer& layer) { return rms_norm(layer.name); }

  LayerFunction projection(const std::string& name, bool has_bias = false) {
    const torch::Tensor weight = normal(name + ".weight");
    const torch::Tensor bias = has_bias ? parameter(name + ".bias") : torch::Tensor();
    return [weight, bias](const torch::Tensor& x) { return torch::linear(x, weight, bias); };
  }

  /// Draws what `feed_forward` would, for an expert that another rank has.
  void skip_feed_forward(const Layer& layer) {
    const torch::Tensor drawn =
        torch::empty({layer.sizes.at("feed_forward") * layer.input.at(1)}, on_device(torch::kFloat64));
    for (int part = 0; part < 3; ++part) drawn.normal_(0.0, 1.0, generator_);
  }

  /// Those that this rank has.
  std::vector<LayerFunction> own_experts(const Layer& layer) {
    const std::int64_t own = layer.sizes.at("experts") / layer.sizes.at("ranks");
    const std::int64_t first = layer.sizes.at("ranks") > 1 ? target_.part_.expert * own : 0;
    std::vector<LayerFunction> experts;
    for (std::int64_t i = 0; i < layer.sizes.at("experts"); ++i)
      if (i >= first && i < first + own)
        experts.push_back(feed_forward(layer, "experts." + std::to_string(i - first) + "."));
      else
        skip_feed_forward(layer);
    return experts;
  }

  LayerFunction feed_forward(const Layer& layer, const std::string& prefix) {
    const auto part = [&](const char* which) {
      return projection(full_name(layer, prefix + layer.texts.at(which)));
    };
    return [gate = part("gate"), up = part("up"), down = part("down")](const torch::Tensor& x) {
      const torch::Tensor factor = torch::silu(gate(x));
      return down(factor * up(x));
    };
  }

  /// The weights of the experts that each token chose, and their numbers: [..., active] each.
  using Router = std::function<std::pair<torch::Tensor, torch::Tensor>(const torch::Tensor&)>;

  /// The softmax over the best `active` scores; or with `sigmoid` (DeepSeek-V3, 2024) the best of sigmoids and a bias which is
  /// for the choice alone, among the groups whose best two are largest, weighed by the sigmoids, to the sum of 1.
  Router route(const Layer& layer) {
    const std::string name = full_name(layer, layer.texts.at("router"));
    const LayerFunction scores_of = projection(name);
    const std::int64_t active = layer.sizes.at("active");
    if (layer.sizes.at("sigmoid") == 0)
      return [=](const torch::Tensor& x) {
        const auto [scores, chosen] = scores_of(x).topk(active, -1);
        return std::pair(torch::softmax(scores, -1), chosen);
      };
    return [=, bias = buffer(name + ".e_score_correction_bias"), groups = layer.sizes.at("groups"),
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
      const torch::Tensor chosen = std::get<1>(wanted.topk(active, -1));
      const torch::Tensor weights = scores.gather(-1, chosen);
      return std::pair(weights / weights.sum(-1, true), chosen);
    };
  }

  /// What the router chooses, weighed. Experts that nobody chose compute too, with no rows, so that all their gradients become
  /// ready.
  LayerFunction choose_experts(const Layer& layer) {
    const Router router = route(layer);
    const std::vector<LayerFunction> experts = own_experts(layer);
    const LayerFunction shared =
        layer.sizes.at("shared") > 0 ? feed_forward(layer, "shared_experts.") : LayerFunction();
    if (expert_capacity(layer) > 0) return fill_places(layer, router, experts, shared);
    if (layer.sizes.at("ranks") > 1)
      throw CapabilityError(
          target_.model_.specification +
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
      if (shared) y = y + shared(x);
      return y.view_as(input);
    };
  }

  /// What the experts of all ranks give for rows [experts, rows of each, width].
  LayerFunction of_all_experts(const Layer& layer, const std::vector<LayerFunction>& own) const {
    const auto exchanged = [&](const char* name) -> LayerFunction {
      const std::string full = layer.name + "." + name;
      return [model = &target_, forward = exchange_index(full, false),
              backward = exchange_index(full, true)](const torch::Tensor& rows) {
        return forward < 0 ? rows : put_together(*model, rows, forward, backward);
      };
    };
    return [own, ranks = layer.sizes.at("ranks"), dispatch = exchanged("dispatch"),
            combine = exchanged("combine")](const torch::Tensor& rows) {
      const torch::Tensor arrived = dispatch(rows).unflatten(0, {ranks, -1});  // rank by rank
      std::vector<torch::Tensor> results;
      for (std::size_t i = 0; i < own.size(); ++i)
        results.push_back(own[i](arrived.select(1, static_cast<std::int64_t>(i))));
      return combine(torch::stack(results, 1).flatten(0, 1));
    };
  }

  /// The same with `expert_capacity` places for tokens of each sequence in every expert, which are taken in the order of
  /// positions: what is computed and sent is as large whatever tokens choose.
  LayerFunction fill_places(const Layer& layer, const Router& router, const std::vector<LayerFunction>& own,
                            const LayerFunction& shared) const {
    return [router, shared, compute = of_all_experts(layer, own), experts = layer.sizes.at("experts"),
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
      torch::Tensor y = torch::zeros_like(x).index_add(0, token, weights * results.index_select(0, slot));
      if (shared) y = y + shared(x);
      return y.view_as(input);
    };
  }

  LayerFunction drop(const Layer& layer) { return dropout(layer.sizes.at("percent"), masks_); }

  /// Keys and values side by side, [batch, heads, positions, 2 head], of all parts of the sequence.
  LayerFunction of_all_parts(const Layer& layer, std::int64_t head) const {
    const std::string name = layer.name + ".context";
    return [model = &target_, head, forward = exchange_index(name, false),
            backward = exchange_index(name, true)](const torch::Tensor& own) {
      const torch::Tensor flat = own.transpose(1, 2).flatten(2);  // positions second, as exchanges take them
      return put_together(*model, flat, forward, backward).unflatten(2, {-1, 2 * head}).transpose(1, 2);
    };
  }

  AttentionFunction ring_of(const Layer& layer) const {
    RingForm form{.rank = target_.part_.context,
                  .positions = layer.input.at(0),
                  .causal = layer.sizes.at("causal") != 0,
                  .model = &target_};
    for (const bool backward : {false, true})
      for (std::int64_t step = 0; step + (backward ? 0 : 1) < layer.sizes.at("context"); ++step) {
        const std::string name = layer.name + ".context." + std::to_string(step);
        (backward ? form.backward : form.forward)
            .push_back({exchange_index(name, backward), exchange_index(name + ".end", backward)});
      }
    return ring_attention(form, target_.numbers_.options());
  }

  /// What `--recompute selective` computes again. \param percent dropped of the probabilities
  AttentionFunction core_attention(AttentionForm form, std::int64_t percent) const {
    form.drop = dropout(percent, masks_);
    AttentionFunction attend = attention(form, target_.numbers_.options());
    if (target_.model_.recomputed_part != RecomputedPart::kCoreAttention) return attend;
    return computed_again(std::move(attend), percent > 0 ? std::optional(masks_) : std::nullopt);
  }

  /// softmax(q k^T / sqrt(d)) v per head, over [batch, sequence, hidden]. q, k and v are computed in this order, by three
  /// projections or by one that gives them side by side, so that gradients of value become ready first and those of
  /// query last. Probabilities are stored, `flash` or not, but by LibTorch 2 on a GPU.
  LayerFunction attend(const Layer& layer) {
    const auto says = [&](const char* flag) { return layer.sizes.at(flag) != 0; };
    const bool fused = says("fused");
    std::vector<LayerFunction> projections;
    for (const std::string& part :
         fused ? std::vector<std::string>{"c_attn"}
               : std::vector<std::string>{layer.texts.at("query"), layer.texts.at("key"),
                                          layer.texts.at("value")})
      projections.push_back(projection(full_name(layer, part), says("bias")));
    const std::int64_t sequence = layer.input.at(0);
    const std::int64_t heads = layer.sizes.at("heads"), head = layer.output.at(1) / heads;
    const std::int64_t sharing = heads / layer.sizes.at("kv_heads");
    const LayerFunction same = [](const torch::Tensor& x) { return x; };
    const LayerFunction q_norm = says("norms") ? rms_norm(full_name(layer, "q_norm")) : same;
    const LayerFunction k_norm = says("norms") ? rms_norm(full_name(layer, "k_norm")) : same;
    const std::int64_t ranks = layer.sizes.at("context");
    const std::vector<std::int64_t> positions = target_.model_.positions(target_.part_.context, sequence);
    const LayerFunction rotate =
        says("rotary") ? rotation(positions, head, target_.numbers_.options()) : same;
    const bool ring = target_.model_.ring;
    const LayerFunction gather = ranks > 1 && !ring ? of_all_parts(layer, head) : LayerFunction();
    const AttentionFunction weigh =
        ring ? ring_of(layer)
             : core_attention({.queries = sequence,
                               .keys = ranks * sequence,
                               .sharing = sharing,
                               .first = positions.front(),
                               .causal = says("causal"),
                               .fuses = says("flash") && ranks == 1 && layer.sizes.at("dropout") == 0},
                              layer.sizes.at("dropout"));
    return [=](const torch::Tensor& x) {
      std::vector<torch::Tensor> parts;
      for (const LayerFunction& project : projections) parts.push_back(project(x));
      if (fused) parts = parts.front().chunk(3, -1);
      // [batch, sequence, heads * head] to [batch, heads, sequence, head]
      const auto by_head = [&](std::size_t part) {
        return parts[part].view({x.size(0), x.size(1), -1, head}).transpose(1, 2);
      };
      const torch::Tensor queries = rotate(q_norm(by_head(0)));
      torch::Tensor keys = rotate(k_norm(by_head(1)));
      torch::Tensor values = by_head(2);
      if (gather) {
        const std::vector<torch::Tensor> both = gather(torch::cat({keys, values}, -1)).chunk(2, -1);
        keys = both[0];
        values = both[1];
      }
      return weigh(queries, keys, values);
    };
  }

  /// Multi-head latent attention as transformers computes it in training: per head [k_n, k_r], with the rotary part k_r that
  /// all heads share. Queries are computed before keys and values, whose gradients so become ready first.
  LayerFunction attend_latent(const Layer& layer) {
    const auto size = [&](const char* key) { return layer.sizes.at(key); };
    const std::int64_t sequence = layer.input.at(0), heads = size("heads");
    const std::int64_t nope = size("nope"), rope = size("rope"), value = size("value"),
                       rank = size("kv_rank");
    const auto part = [&](const char* name) { return projection(full_name(layer, name)); };
    const auto norm = [&](const char* name) { return rms_norm(full_name(layer, name)); };
    std::vector<LayerFunction> queries;
    if (size("q_rank") > 0)
      queries = {part("q_a_proj"), norm("q_a_layernorm"), part("q_b_proj")};
    else
      queries = {part("q_proj")};
    const LayerFunction down = part("kv_a_proj_with_mqa"), latent_norm = norm("kv_a_layernorm"),
                        up = part("kv_b_proj");
    const LayerFunction rotate =
        rotation(target_.model_.positions(0, sequence), rope, target_.numbers_.options());
    const AttentionFunction weigh = core_attention(
        {.queries = sequence, .keys = sequence, .causal = true, .fuses = size("flash") != 0}, 0);
    return [=](const torch::Tensor& x) {
      const auto by_head = [&](const torch::Tensor& all) {
        return all.view({x.size(0), x.size(1), heads, -1}).transpose(1, 2);
      };
      const std::vector<torch::Tensor> q = by_head(run(queries, x)).split_with_sizes({nope, rope}, -1);
      const std::vector<torch::Tensor> latent = down(x).split_with_sizes({rank, rope}, -1);
      const torch::Tensor turned = rotate(latent[1].unsqueeze(1)).expand({-1, heads, -1, -1});
      const std::vector<torch::Tensor> kv =
          by_head(up(latent_norm(latent[0]))).split_with_sizes({nope, value}, -1);
      return weigh(torch::cat({q[0], rotate(q[1])}, -1), torch::cat({kv[0], turned}, -1), kv[1]);
    };
  }

  /// y = x weight^T with a weight that another segment owns.
  ///
  /// Its gradient is complete only after the owner's backward. Therefore the function uses a second leaf over
  /// the same memory, whose gradient is the owner's gradient: what flows here is added to it silently, and the
  /// owner's accumulation, the only one that calls the gradient hook, comes after it, be the graph whole or cut
  /// into segments. A tied weight in a single graph would be accumulated once, cut into segments twice.
  LayerFunction tie(const Layer& layer) {
    return [weight = target_.parameters_[parameter_index_.at(layer.texts.at("to"))]](const torch::Tensor& x) {
      torch::Tensor alias = weight.detach().requires_grad_();
      alias.mutable_grad() = weight.grad();
      return torch::linear(x, alias);
    };
  }

  TorchModel& target_;
  std::shared_ptr<GivenUp> given_ = std::make_shared<GivenUp>();  ///< of the shared layers under way
  at::Generator generator_;
  at::Generator masks_;  ///< of dropout, apart from that of the parameters
  std::map<std::string, std::size_t> parameter_index_;
  std::set<std::size_t> made_;  ///< parameters
  std::map<std::string, std::size_t> buffer_index_;
  std::map<std::pair<std::string, bool>, int> exchange_index_;  ///< by name, and whether of the backward
};

std::unique_ptr<torch::optim::Optimizer> TorchModel::make_optimizer(
    const std::vector<torch::Tensor>& tensors) const {
  const Optimizer& settings = model_.optimizer;
  if (settings.kind == "sgd")
    return std::make_unique<torch::optim::SGD>(tensors, torch::optim::SGDOptions(settings.learning_rate)
                                                            .momentum(settings.momentum)
                                                            .weight_decay(settings.weight_decay));
  if (settings.kind == "adam")
    return std::make_unique<torch::optim::Adam>(
        tensors, torch::optim::AdamOptions(settings.learning_rate).weight_decay(settings.weight_decay));
  throw InputError(model_.path + ": " + unknown_name("optimizer", settings.kind, {"adam", "sgd"}));
}

TorchModel::TorchModel(const Model& model, const Numbers& numbers, unsigned seed,
                       const std::optional<std::vector<int>>& held, const ModelPart& part)
    : model_(model), numbers_(numbers), part_(part), masks_(numbers.generator(seed + 1)) {
  if (model.has_fixed_times())
    throw InputError(model.path + ": model '" + model.name +
                     "' declares its times; there is nothing to compute");
  Builder builder(*this, seed);
  std::vector<int> all(model.segments.size());
  std::iota(all.begin(), all.end(), 0);
  const std::vector<int>& kept = held ? *held : all;
  for (const int segment : all) {
    segments_.push_back(builder.chain(model.segments[static_cast<std::size_t>(segment)].layers));
    drop_unless_held(segment, kept, all);
  }
  builder.check_complete();
  for (const int segment : all) drop_unless_held(segment, kept, kept);
  masters_ = parameters_;
  if (numbers.master) {
    const MemoryScope scope(MemoryCategory::kOptimizerState);
    for (torch::Tensor& master : masters_)
      if (master.defined()) master = master.detach().to(torch::kFloat32).requires_grad_();
  }
  for (std::size_t i = 0; i < segments_.size(); ++i) {
    std::vector<torch::Tensor> tensors;
    for (const int index : model.segments[i].parameters)
      if (masters_[static_cast<std::size_t>(index)].defined())
        tensors.push_back(masters_[static_cast<std::size_t>(index)]);
    optimizers_.push_back(tensors.empty() ? nullptr : make_optimizer(tensors));
  }
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    if (parameters_[i].defined()) add_gradient_hook(static_cast<int>(i));
}

/// Weights of all segments are drawn, so that every rank draws the same; those of others go at once, but for what a later
/// segment is made with.
void TorchModel::drop_unless_held(int segment, const std::vector<int>& held, const std::vector<int>& users) {
  const auto i = static_cast<std::size_t>(segment);
  if (std::find(held.begin(), held.end(), segment) != held.end()) return;
  std::set<int> kept;
  for (const int user : users) {
    const std::vector<int>& tied = model_.segments[static_cast<std::size_t>(user)].tied;
    kept.insert(tied.begin(), tied.end());
  }
  segments_[i].clear();
  for (const int index : model_.segments[i].parameters)
    if (!kept.contains(index)) parameters_[static_cast<std::size_t>(index)].reset();
}

void TorchModel::add_gradient_hook(int index) {
  using Variables = torch::autograd::variable_list;
  const auto call = [this, index](const Variables& outputs, const Variables&) {
    if (gradient_hook_) gradient_hook_(index);
    return outputs;
  };
  accumulators_.push_back(
      torch::autograd::impl::grad_accumulator(parameters_[static_cast<std::size_t>(index)]));
  accumulators_.back()->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(call));
}

FinalState TorchModel::final_state() const {
  const auto copies = [](const std::vector<torch::Tensor>& tensors) {
    std::vector<std::vector<double>> values;
    for (const torch::Tensor& tensor : tensors) {
      values.emplace_back();
      if (!tensor.defined()) continue;
      const torch::Tensor flat = tensor.detach().to(torch::kFloat64).contiguous();
      values.back().assign(flat.data_ptr<double>(), flat.data_ptr<double>() + flat.numel());
    }
    return values;
  };
  return {copies(parameters_), copies(buffers_)};
}

void TorchModel::give_up_master(int parameter) const {
  if (numbers_.master) free_memory(masters_[static_cast<std::size_t>(parameter)]);
}

torch::Tensor TorchModel::forward(std::size_t segment, const torch::Tensor& input) const {
  return run(segments_[segment], input);
}

torch::Tensor TorchModel::forward(const torch::Tensor& input) const {
  torch::Tensor value = input;
  for (std::size_t segment = 0; segment < segments_.size(); ++segment) value = forward(segment, value);
  return value;
}

MemoryBytes TorchModel::resident_bytes() const {
  MemoryBytes bytes{};
  const auto add = [&bytes](MemoryCategory category, const torch::Tensor& tensor) {
    if (tensor.defined()) bytes[static_cast<std::size_t>(category)] += static_cast<double>(tensor.nbytes());
  };
  for (const torch::Tensor& flat : flat_buffers_) add(MemoryCategory::kParameters, flat);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    add(MemoryCategory::kParameters, parameters_[i]);
    if (numbers_.master) add(MemoryCategory::kOptimizerState, masters_[i]);
    if (parameters_[i].defined()) add(MemoryCategory::kGradients, parameters_[i].grad());
    for (int state = 0; masters_[i].defined() && state < model_.optimizer.states(); ++state)
      add(MemoryCategory::kOptimizerState, masters_[i]);
  }
  return bytes;
}

torch::Tensor TorchModel::loss(const torch::Tensor& stored, const torch::Tensor& wanted) const {
  const auto whole = [this](const torch::Tensor& tensor) {
    return numbers_.master && tensor.is_floating_point() ? tensor.to(torch::kFloat32) : tensor;
  };
  const torch::Tensor output = whole(stored), target = whole(wanted);
  if (model_.shares_classes())
    return shared_cross_entropy(*this, output.flatten(0, 1), target.flatten(), part_.share);
  if (model_.loss == "cross_entropy")
    return output.dim() == 3 ? torch::cross_entropy_loss(output.flatten(0, 1), target.flatten())
                             : torch::cross_entropy_loss(output, target);
  if (model_.loss == "binary_cross_entropy") return torch::binary_cross_entropy_with_logits(output, target);
  throw InputError(model_.path + ": " +
                   unknown_name("loss", model_.loss, {"binary_cross_entropy", "cross_entropy"}));
}

void TorchModel::zero_grad(std::optional<std::size_t> segment) {
  for (std::size_t i = 0; i < segments_.size(); ++i) {
    if (segment.value_or(i) != i) continue;
    for (const int index : model_.segments[i].parameters)
      if (const torch::Tensor& parameter = parameters_[static_cast<std::size_t>(index)]; parameter.defined())
        parameter.mutable_grad().zero_();  // in place: the optimizer's own way detaches, which views refuse
  }
}

void TorchModel::optimizer_step(std::optional<std::size_t> segment) {
  const torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < segments_.size(); ++i) {
    if (segment.value_or(i) != i || optimizers_[i] == nullptr) continue;
    const auto with_masters = [&](const auto& act) {
      if (!numbers_.master) return;
      for (const int index : model_.segments[i].parameters)
        if (const auto k = static_cast<std::size_t>(index); parameters_[k].defined())
          act(parameters_[k], masters_[k]);
    };
    with_masters([](const torch::Tensor& parameter, torch::Tensor& master) {
      master.mutable_grad() = parameter.grad().to(torch::kFloat32);
    });
    optimizers_[i]->step();
    with_masters([](torch::Tensor& parameter, torch::Tensor& master) {
      parameter.copy_(master);
      master.mutable_grad().reset();
    });
  }
}

}  // namespace stepcast
