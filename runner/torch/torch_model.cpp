#include "runner/torch/torch_model.hpp"

#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>

#include "core/error.hpp"
#include "models/layer.hpp"
#include "runner/execute/memory_account.hpp"

namespace stepcast {

/// Turns the layers of a Model into functions over tensors and creates the tensors they use.
class TorchModel::Builder {
 public:
  Builder(TorchModel& target, unsigned seed)
      : target_(target), generator_(at::make_generator<at::CPUGeneratorImpl>(seed)), masks_(target.masks_) {
    const Model& model = target.model_;
    target.parameters_.resize(model.parameters.size());
    target.buffers_.resize(model.buffers.size());
    for (std::size_t i = 0; i < model.parameters.size(); ++i) parameter_index_[model.parameters[i].name] = i;
    for (std::size_t i = 0; i < model.buffers.size(); ++i) buffer_index_[model.buffers[i].name] = i;
    make_buffers();
  }

  std::vector<LayerFunction> segment(const Segment& segment) {
    std::vector<LayerFunction> functions;
    for (const Layer& layer : segment.layers) functions.push_back(build(layer));
    return functions;
  }

  /// \throws std::logic_error when a parameter of the Model belongs to no layer
  void check_complete() const {
    for (const auto& [name, index] : parameter_index_)
      if (!target_.parameters_[index].defined()) throw std::logic_error("no layer owns parameter " + name);
  }

 private:
  LayerFunction build(const Layer& layer) {
    using Build = LayerFunction (Builder::*)(const Layer&);
    static const std::map<std::string, Build> kKinds{{"conv", &Builder::conv},
                                                     {"linear", &Builder::linear},
                                                     {"batch_norm", &Builder::batch_norm},
                                                     {"relu", &Builder::relu},
                                                     {"max_pool", &Builder::max_pool},
                                                     {"adaptive_avg_pool", &Builder::average},
                                                     {"flatten", &Builder::flatten},
                                                     {"residual", &Builder::residual},
                                                     {"embedding", &Builder::embed},
                                                     {"layer_norm", &Builder::normalise},
                                                     {"gelu", &Builder::gelu},
                                                     {"tanh", &Builder::tanh},
                                                     {"dropout", &Builder::drop},
                                                     {"self_attention", &Builder::attend},
                                                     {"first_token", &Builder::first_token},
                                                     {"tied_linear", &Builder::tie}};
    const auto kind = kKinds.find(layer.kind);
    if (kind == kKinds.end())
      throw InputError(target_.model_.path + ": layer " + layer.name + ": the runner has no kind '" +
                       layer.kind + "'");
    return (this->*kind->second)(layer);
  }

  /// Buffers are parts of one array per dtype, so that broadcasting them is one call without copies.
  void make_buffers() {
    const MemoryScope scope(MemoryCategory::kParameters);
    const Model& model = target_.model_;
    std::array<std::int64_t, 2> elements{};
    for (const Buffer& buffer : model.buffers) elements[buffer.is_integer ? 1 : 0] += numel(buffer.shape);
    const std::array<torch::ScalarType, 2> types{target_.dtype_, torch::kInt64};
    for (std::size_t group = 0; group < 2; ++group)
      if (elements[group] > 0) target_.flat_buffers_[group] = torch::zeros({elements[group]}, types[group]);
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

  /// Creates a parameter, zero so far.
  torch::Tensor parameter(const std::string& name) {
    const std::size_t index = parameter_index_.at(name);
    const MemoryScope parameters(MemoryCategory::kParameters);
    torch::Tensor value =
        torch::zeros(torch::IntArrayRef(target_.model_.parameters[index].shape), target_.dtype_)
            .requires_grad_();
    const MemoryScope gradients(MemoryCategory::kGradients);
    value.mutable_grad() = torch::zeros_like(value);
    target_.parameters_[index] = value;
    return value;
  }

  torch::Tensor buffer(const std::string& name) { return target_.buffers_[buffer_index_.at(name)]; }

  /// Drawn in float64 whatever the dtype.
  torch::Tensor normal(const std::string& name) {
    constexpr double kDeviation = 0.02;
    const torch::NoGradGuard no_grad;
    torch::Tensor value = parameter(name);
    value.copy_(torch::empty_like(value, torch::kFloat64).normal_(0.0, kDeviation, generator_));
    return value;
  }

  /// Weight and bias of a convolution or a linear layer; drawn in float64 whatever the dtype.
  std::pair<torch::Tensor, torch::Tensor> weights(const Layer& layer) {
    const bool has_bias = layer.sizes.at("bias") != 0;
    if (target_.model_.input_kind == "tokens") {
      const torch::Tensor drawn = normal(layer.name + ".weight");
      return {drawn, has_bias ? parameter(layer.name + ".bias") : torch::Tensor()};
    }
    const torch::NoGradGuard no_grad;
    torch::Tensor weight = parameter(layer.name + ".weight");
    const double bound = 1.0 / std::sqrt(static_cast<double>(weight[0].numel()));
    const auto draw = [&](torch::Tensor& tensor) {
      tensor.copy_(torch::empty_like(tensor, torch::kFloat64).uniform_(-bound, bound, generator_));
    };
    draw(weight);
    torch::Tensor bias;
    if (has_bias) {
      bias = parameter(layer.name + ".bias");
      draw(bias);
    }
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

  LayerFunction relu(const Layer& /*layer*/) {
    return [](const torch::Tensor& x) { return torch::relu(x); };
  }

  LayerFunction flatten(const Layer& /*layer*/) {
    return [](const torch::Tensor& x) { return x.flatten(1); };
  }

  LayerFunction residual(const Layer& layer) {
    const auto chain = [this](const std::vector<Layer>& layers) {
      std::vector<LayerFunction> functions;
      for (const Layer& inner : layers) functions.push_back(build(inner));
      return functions;
    };
    return [body = chain(layer.body), shortcut = chain(layer.shortcut)](const torch::Tensor& x) {
      torch::Tensor y = x;
      for (const LayerFunction& function : body) y = function(y);
      torch::Tensor z = x;
      for (const LayerFunction& function : shortcut) z = function(z);
      return y + z;
    };
  }

  LayerFunction embed(const Layer& layer) {
    const auto table = [&](const char* kind) {
      return normal(full_name(layer, layer.texts.at(kind) + ".weight"));
    };
    EmbeddingTables tables;
    tables.word = table("word");
    tables.position = table("position");
    if (layer.sizes.at("types") > 0) tables.type = table("type");
    return embedding(tables);
  }

  LayerFunction normalise(const Layer& layer) {
    const torch::NoGradGuard no_grad;
    torch::Tensor weight = parameter(layer.name + ".weight");
    weight.fill_(1.0);
    return layer_norm(weight, parameter(layer.name + ".bias"));
  }

  LayerFunction gelu(const Layer& /*layer*/) {
    return [](const torch::Tensor& x) { return torch::gelu(x); };
  }

  LayerFunction tanh(const Layer& /*layer*/) {
    return [](const torch::Tensor& x) { return torch::tanh(x); };
  }

  LayerFunction drop(const Layer& layer) { return dropout(layer.sizes.at("percent"), masks_); }

  LayerFunction attend(const Layer& layer) {
    AttentionProjections by;
    const auto project = [&](const std::string& part, torch::Tensor& weight, torch::Tensor& bias) {
      weight = normal(full_name(layer, part + ".weight"));
      bias = parameter(full_name(layer, part + ".bias"));
    };
    if (layer.sizes.at("fused") != 0) {
      project("c_attn", by.fused_weight, by.fused_bias);
    } else {
      project("query", by.query_weight, by.query_bias);
      project("key", by.key_weight, by.key_bias);
      project("value", by.value_weight, by.value_bias);
    }
    return self_attention(layer, by, masks_);
  }

  LayerFunction first_token(const Layer& /*layer*/) {
    return [](const torch::Tensor& x) { return x.select(1, 0); };
  }

  LayerFunction tie(const Layer& layer) {
    return tied_linear(target_.parameters_[parameter_index_.at(layer.texts.at("to"))]);
  }

  TorchModel& target_;
  at::Generator generator_;
  at::Generator masks_;  ///< of dropout, apart from that of the parameters
  std::map<std::string, std::size_t> parameter_index_;
  std::map<std::string, std::size_t> buffer_index_;
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

namespace {

std::vector<int> every_segment(const Model& model) {
  std::vector<int> all(model.segments.size());
  std::iota(all.begin(), all.end(), 0);
  return all;
}

}  // namespace

TorchModel::TorchModel(const Model& model, torch::ScalarType dtype, unsigned seed)
    : TorchModel(model, dtype, seed, every_segment(model)) {}

TorchModel::TorchModel(const Model& model, torch::ScalarType dtype, unsigned seed,
                       const std::vector<int>& held)
    : model_(model), dtype_(dtype), masks_(at::make_generator<at::CPUGeneratorImpl>(seed + 1)) {
  if (model.has_fixed_times())
    throw InputError(model.path + ": model '" + model.name +
                     "' declares its times; there is nothing to compute");
  Builder builder(*this, seed);
  for (const Segment& segment : model.segments) segments_.push_back(builder.segment(segment));
  builder.check_complete();
  std::set<int> tied;
  for (const int segment : held)
    tied.insert(model.segments[static_cast<std::size_t>(segment)].tied.begin(),
                model.segments[static_cast<std::size_t>(segment)].tied.end());
  for (std::size_t i = 0; i < segments_.size(); ++i)
    if (std::find(held.begin(), held.end(), static_cast<int>(i)) == held.end()) drop(i, tied);
  for (std::size_t i = 0; i < segments_.size(); ++i) {
    std::vector<torch::Tensor> tensors;
    for (const int index : model.segments[i].parameters)
      if (parameters_[static_cast<std::size_t>(index)].defined())
        tensors.push_back(parameters_[static_cast<std::size_t>(index)]);
    optimizers_.push_back(tensors.empty() ? nullptr : make_optimizer(tensors));
  }
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    if (parameters_[i].defined()) add_gradient_hook(static_cast<int>(i));
}

/// Weights of all segments are drawn, so that every rank draws the same; then those of others go.
void TorchModel::drop(std::size_t segment, const std::set<int>& kept) {
  segments_[segment].clear();
  for (const int index : model_.segments[segment].parameters)
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

const torch::Tensor& TorchModel::flat_buffers(int dtype_group) const {
  return flat_buffers_.at(static_cast<std::size_t>(dtype_group));
}

torch::Tensor TorchModel::forward(std::size_t segment, const torch::Tensor& input) const {
  torch::Tensor value = input;
  for (const LayerFunction& layer : segments_[segment]) value = layer(value);
  return value;
}

torch::Tensor TorchModel::forward(const torch::Tensor& input) const {
  torch::Tensor value = input;
  for (std::size_t segment = 0; segment < segments_.size(); ++segment) value = forward(segment, value);
  return value;
}

torch::Tensor TorchModel::loss(const torch::Tensor& output, const torch::Tensor& target) const {
  if (model_.loss == "cross_entropy")
    return output.dim() == 3 ? torch::cross_entropy_loss(output.flatten(0, 1), target.flatten())
                             : torch::cross_entropy_loss(output, target);
  if (model_.loss == "binary_cross_entropy") return torch::binary_cross_entropy_with_logits(output, target);
  throw InputError(model_.path + ": " +
                   unknown_name("loss", model_.loss, {"binary_cross_entropy", "cross_entropy"}));
}

void TorchModel::zero_grad() {
  for (std::size_t segment = 0; segment < optimizers_.size(); ++segment) zero_grad(segment);
}

void TorchModel::zero_grad(std::size_t segment) {
  for (const int index : model_.segments[segment].parameters)
    if (const torch::Tensor& parameter = parameters_[static_cast<std::size_t>(index)]; parameter.defined())
      parameter.mutable_grad().zero_();  // in place: the optimizer's own way detaches, which views refuse
}

void TorchModel::optimizer_step() {
  for (std::size_t segment = 0; segment < optimizers_.size(); ++segment) optimizer_step(segment);
}

void TorchModel::optimizer_step(std::size_t segment) {
  if (optimizers_[segment] != nullptr) optimizers_[segment]->step();
}

}  // namespace stepcast
