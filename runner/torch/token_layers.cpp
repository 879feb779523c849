#include <utility>

#include "models/layer.hpp"
#include "runner/torch/layer_builder.hpp"

namespace stepcast {
namespace {

/// Rows of the words in this rank's part of the table, 0 for all others.
LayerFunction own_words(LayerBuilder& builder, const torch::Tensor& table) {
  return [table, first = builder.part().share * table.size(0)](const torch::Tensor& tokens) {
    const torch::Tensor own = tokens - first, foreign = own.lt(0).logical_or(own.ge(table.size(0)));
    return torch::embedding(table, own.masked_fill(foreign, 0)).masked_fill(foreign.unsqueeze(-1), 0.0);
  };
}

/// Token ids [batch, sequence], int64, to the sum of up to three rows per token: of the word, of token type 0
/// if the model has types, and of the position if it has a table of them.
LayerFunction build_embedding(LayerBuilder& builder, const Layer& layer) {
  const auto table = [&](const char* kind) {
    return builder.normal(full_name(layer, layer.texts.at(kind) + ".weight"));
  };
  const torch::Tensor word = table("word");
  const torch::Tensor position = layer.sizes.at("positions") > 0 ? table("position") : torch::Tensor();
  const torch::Tensor type = layer.sizes.at("types") > 0 ? table("type") : torch::Tensor();
  if (layer.texts.contains(kShared)) return own_words(builder, word);
  return [word, position, type](const torch::Tensor& tokens) {
    torch::Tensor sum = torch::embedding(word, tokens);
    if (type.defined()) sum = sum + torch::embedding(type, torch::zeros_like(tokens));
    if (!position.defined()) return sum;
    const torch::Tensor positions = torch::arange(tokens.size(1), tokens.options()).unsqueeze(0);
    return sum + torch::embedding(position, positions);
  };
}

LayerFunction build_positions(LayerBuilder& builder, const Layer& layer) {
  const std::string name = layer.name + ".weight";
  const Model& model = builder.model();
  const std::int64_t own = layer.input.front();
  const torch::Tensor positions =
      torch::tensor(model.positions(builder.part().context, model.input.shape.front()),
                    builder.on_device(torch::kInt64))
          .narrow(0, model.parallel.sequence_parallel ? builder.part().share * own : 0, own);
  const auto table = builder.summed(name, builder.normal(name));
  if (model.parallel.ring)
    return [table, positions](const torch::Tensor& x) { return x + table().index_select(0, positions); };
  return [table, first = positions[0].item<std::int64_t>()](const torch::Tensor& x) {
    return x + table().narrow(0, first, x.size(1));
  };
}

LayerFunction build_layer_norm(LayerBuilder& builder, const Layer& layer) {
  constexpr double kEpsilon = 1e-5;  // BERT's own is 1e-12, which changes no time
  const torch::Tensor weight = builder.ones(layer.name + ".weight");
  const torch::Tensor bias =
      layer.sizes.at("bias") != 0 ? builder.parameter(layer.name + ".bias") : torch::Tensor();
  return [weight = builder.summed(layer.name + ".weight", weight),
          bias = builder.summed(layer.name + ".bias", bias)](const torch::Tensor& x) {
    const torch::Tensor scale = weight();
    return torch::layer_norm(x, {x.size(-1)}, scale, bias(), kEpsilon);
  };
}

LayerFunction build_rms_norm(LayerBuilder& builder, const Layer& layer) {
  return builder.rms_norm(layer.name);
}

LayerFunction build_dropout(LayerBuilder& builder, const Layer& layer) {
  return dropout(layer.sizes.at("percent"), builder.masks());
}

/// y = x weight^T with a weight that another segment owns.
///
/// Its gradient is complete only after the owner's backward. The function therefore uses a second leaf over
/// the same memory, whose gradient is the owner's: it adds to that silently. The owner's accumulation, which
/// alone calls the gradient hook, comes later, in one graph as in segments. Otherwise one graph would
/// accumulate a tied weight once, and segments twice.
LayerFunction build_tied_linear(LayerBuilder& builder, const Layer& layer) {
  return [weight = builder.held(layer.texts.at("to"))](const torch::Tensor& x) {
    if (!weight.requires_grad()) return torch::linear(x, weight);
    torch::Tensor alias = weight.detach().requires_grad_();
    alias.mutable_grad() = weight.grad();
    return torch::linear(x, alias);
  };
}

LayerFunction build_enter(LayerBuilder& builder, const Layer& layer) {
  const LayerFunction put = builder.collective(layer.name);
  if (layer.sizes.at("regather") == 0) return put;
  return [put, given = builder.freed_input()](const torch::Tensor& x) {
    torch::Tensor whole = put(x);
    if (torch::GradMode::is_enabled()) *given = {whole.variable_data(), x.detach()};
    return whole;
  };
}

/// Without autograd nothing is saved that could be freed.
LayerFunction leave_freeing_input(LayerBuilder& builder, const Layer& layer) {
  return [put = builder.collective(layer.name), given = builder.freed_input(), model = &builder.target(),
          forward = builder.collective_index(layer.name, false),
          backward = builder.collective_index(layer.name, true),
          regather = builder.collective_index(layer.name + kRegather, true)](const torch::Tensor& x) {
    if (!torch::GradMode::is_enabled()) return put(x);
    const FreedInput input = std::exchange(*given, {});
    return RegatheringCollectives::apply(x, model, forward, backward, regather, input.whole, input.own);
  };
}

LayerFunction build_leave(LayerBuilder& builder, const Layer& layer) {
  const LayerFunction put =
      layer.sizes.at("regather") == 0 ? builder.collective(layer.name) : leave_freeing_input(builder, layer);
  if (layer.sizes.at("bias") == 0) return put;
  const std::string name = full_name(layer, "bias");
  return [put, bias = builder.summed(name, builder.parameter(name))](const torch::Tensor& x) {
    const torch::Tensor y = put(x);
    return y + bias();
  };
}

}  // namespace

const LayerTable kTokenLayers{{"embedding", &build_embedding},   {"position_embedding", &build_positions},
                              {"layer_norm", &build_layer_norm}, {"rms_norm", &build_rms_norm},
                              {"dropout", &build_dropout},       {"tied_linear", &build_tied_linear},
                              {"tensor_enter", &build_enter},    {"tensor_leave", &build_leave}};

}  // namespace stepcast
