#pragma once

#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "core/ranges.hpp"
#include "models/layer.hpp"
#include "runner/execute/memory_account.hpp"
#include "runner/torch/collective_functions.hpp"
#include "runner/torch/script_program.hpp"
#include "runner/torch/torch_model.hpp"

namespace stepcast {

class LayerBuilder;

/// Builders of layers by kind: one table per file.
using LayerTable = std::map<std::string, LayerFunction (*)(LayerBuilder&, const Layer&)>;
extern const LayerTable kImageLayers, kTokenLayers, kExpertLayers, kAttentionLayers, kStateSpaceLayers,
    kScriptLayers;

/// Turns the layers of a Model into functions over tensors and creates the tensors that they use.
class LayerBuilder {
 public:
  LayerBuilder(TorchModel& target, unsigned seed)
      : target_(target), generator_(target.dtypes_.generator(seed)) {
    const Model& model = target.model_;
    target.parameters_.resize(model.parameters.size());
    target.buffers_.resize(model.buffers.size());
    for (std::size_t i = 0; i < model.parameters.size(); ++i) parameter_index_[model.parameters[i].name] = i;
    for (std::size_t i = 0; i < model.buffers.size(); ++i) buffer_index_[model.buffers[i].name] = i;
    for (std::size_t i = 0; i < model.collectives.size(); ++i)
      collective_index_[{model.collectives[i].name, model.collectives[i].backward}] = static_cast<int>(i);
    make_buffers();
  }

  std::vector<LayerFunction> chain(const std::vector<Layer>& layers) {
    return transformed(layers, [&](const Layer& layer) { return build(layer); });
  }

  /// \throws std::logic_error if a parameter of the Model belongs to no layer
  void check_complete() const {
    for (const auto& [name, index] : parameter_index_)
      if (!made_.contains(index)) throw std::logic_error("no layer owns parameter " + name);
  }

  [[nodiscard]] TorchModel& target() { return target_; }
  [[nodiscard]] const Model& model() const { return target_.model_; }
  [[nodiscard]] const ModelPart& part() const { return target_.part_; }
  [[nodiscard]] torch::TensorOptions options() const { return target_.dtypes_.options(); }
  [[nodiscard]] torch::TensorOptions on_device(torch::ScalarType type) const { return options().dtype(type); }
  /// Generator of initial parameters.
  [[nodiscard]] const at::Generator& generator() const { return generator_; }
  /// Generator of dropout masks.
  [[nodiscard]] const at::Generator& masks() const { return target_.masks_; }
  /// Input of the tensor-parallel layers that are executing, which their end frees.
  [[nodiscard]] const std::shared_ptr<FreedInput>& freed_input() const { return freed_input_; }

  /// Creates a parameter, zero so far.
  torch::Tensor parameter(const std::string& name) {
    const std::size_t index = parameter_index_.at(name);
    const MemoryScope parameters(MemoryCategory::kParameters);
    const bool trains = !model().parameters[index].frozen;
    torch::Tensor value =
        torch::zeros(torch::IntArrayRef(model().parameters[index].shape), options()).requires_grad_(trains);
    const MemoryScope gradients(MemoryCategory::kGradients);
    if (trains) value.mutable_grad() = torch::zeros_like(value);
    target_.parameters_[index] = value;
    made_.insert(index);
    return value;
  }

  /// Creates a parameter of ones, as norms begin.
  torch::Tensor ones(const std::string& name) {
    const torch::NoGradGuard no_grad;
    return parameter(name).fill_(1.0);
  }

  /// Parameter of an earlier layer.
  [[nodiscard]] torch::Tensor held(const std::string& name) const {
    return target_.parameters_[parameter_index_.at(name)];
  }

  [[nodiscard]] torch::Tensor buffer(const std::string& name) const {
    return target_.buffers_[buffer_index_.at(name)];
  }

  /// Creates a parameter drawn from normal(0, 0.02), in float64 whatever the dtype. Tensor-parallel ranks
  /// draw the whole and keep their part.
  torch::Tensor normal(const std::string& name) {
    constexpr double kDeviation = 0.02;
    const torch::NoGradGuard no_grad;
    torch::Tensor value = parameter(name);
    const Parameter& what = model().parameters[parameter_index_.at(name)];
    const std::int64_t dimension = what.shared_dimension;
    const std::int64_t share = what.expert ? part().expert_share : part().share;
    std::vector<std::int64_t> shape = value.sizes().vec();
    if (dimension >= 0)
      shape[dimension] *= what.expert ? model().parallel.expert_tensor : model().parallel.tensor;
    const torch::Tensor drawn =
        torch::empty(shape, on_device(torch::kFloat64)).normal_(0.0, kDeviation, generator_);
    value.copy_(dimension < 0
                    ? drawn
                    : drawn.narrow(dimension, share * value.size(dimension), value.size(dimension)));
    return value;
  }

  /// Creates weight and bias of a convolution or linear layer, drawn in float64 whatever the dtype. The bias
  /// is undefined if the layer has none.
  std::pair<torch::Tensor, torch::Tensor> weights(const Layer& layer) {
    const bool tokens = model().input.kind == "tokens";
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

  /// Index of a collective of the model; -1: it has none of that name.
  [[nodiscard]] int collective_index(const std::string& name, bool backward) const {
    return value_or(collective_index_, std::pair(name, backward), -1);
  }

  /// Applies the collectives of that name, forward and backward; the identity if there are none.
  [[nodiscard]] LayerFunction collective(const std::string& name) {
    const int forward = collective_index(name, false), backward = collective_index(name, true);
    if (forward < 0 && backward < 0) return [](const torch::Tensor& x) { return x; };
    return [model = &target_, forward, backward](const torch::Tensor& x) {
      return CollectivePair::apply(x, model, forward, backward);
    };
  }

  /// Returns the parameter; its gradient is summed over the ranks if the model has a collective of that name.
  [[nodiscard]] std::function<torch::Tensor()> summed(const std::string& name,
                                                      const torch::Tensor& parameter) {
    return [parameter, sum = collective(name)] { return sum(parameter); };
  }

  /// The TorchScript file, loaded once.
  std::shared_ptr<const ScriptProgram> program(const std::string& path) {
    if (program_ == nullptr) program_ = std::make_shared<const ScriptProgram>(path);
    return program_;
  }

  /// Linear layer with normal weights.
  LayerFunction projection(const std::string& name, bool has_bias = false) {
    const torch::Tensor weight = normal(name + ".weight");
    const torch::Tensor bias = has_bias ? parameter(name + ".bias") : torch::Tensor();
    return adapted(name, [weight = summed(name + ".weight", weight), bias = summed(name + ".bias", bias)](
                             const torch::Tensor& x) { return torch::linear(x, weight(), bias()); });
  }

  /// The layer `base` of this name, with its adapter if the model has one (see parameters_of), whose B starts
  /// at 0.
  LayerFunction adapted(const std::string& name, LayerFunction base) {
    constexpr double kScale = 2.0;
    const std::string first = name + ".lora_A.weight";
    if (!parameter_index_.contains(first)) return base;
    return [base = std::move(base), a = normal(first),
            b = parameter(name + ".lora_B.weight")](const torch::Tensor& x) {
      const torch::Tensor y = base(x);
      return y + kScale * torch::linear(torch::linear(x, a), b);
    };
  }

  /// x / sqrt(mean(x^2) + epsilon) * weight, over the last dimension.
  LayerFunction rms_norm(const std::string& name) {
    constexpr double kEpsilon = 1e-5;
    return [weight = summed(name + ".weight", ones(name + ".weight"))](const torch::Tensor& x) {
      return x * torch::rsqrt(x.square().mean(-1, true) + kEpsilon) * weight();
    };
  }

 private:
  LayerFunction build(const Layer& layer) {
    static const std::map<std::string, LayerFunction> kLayersWithoutTensors{
        {"relu", [](const torch::Tensor& x) { return torch::relu(x); }},
        {"gelu", [](const torch::Tensor& x) { return torch::gelu(x); }},
        {"silu", [](const torch::Tensor& x) { return torch::silu(x); }},
        {"relu2", [](const torch::Tensor& x) { return torch::relu(x).square(); }},
        {"tanh", [](const torch::Tensor& x) { return torch::tanh(x); }},
        {"flatten", [](const torch::Tensor& x) { return x.flatten(1); }},
        {"first_token", [](const torch::Tensor& x) { return x.select(1, 0); }}};
    if (const auto found = kLayersWithoutTensors.find(layer.kind); found != kLayersWithoutTensors.end())
      return found->second;
    for (const LayerTable* table : {&kImageLayers, &kTokenLayers, &kExpertLayers, &kAttentionLayers,
                                    &kStateSpaceLayers, &kScriptLayers})
      if (const auto found = table->find(layer.kind); found != table->end())
        return found->second(*this, layer);
    throw InputError("{}: layer {}: the runner has no kind '{}'", model().path, layer.name, layer.kind);
  }

  /// Buffers are parts of one array per dtype, so that broadcasting them is one call without copies.
  void make_buffers() {
    const MemoryScope scope(MemoryCategory::kParameters);
    std::array<std::int64_t, 2> elements{};
    for (const Buffer& buffer : model().buffers) elements[buffer.is_integer ? 1 : 0] += numel(buffer.shape);
    const std::array<torch::ScalarType, 2> types{target_.dtype(), torch::kInt64};
    for (std::size_t group = 0; group < 2; ++group)
      if (elements[group] > 0)
        target_.flat_buffers_[group] = torch::zeros({elements[group]}, on_device(types[group]));
    std::array<std::int64_t, 2> offset{};
    for (const auto [i, buffer] : enumerated(model().buffers)) {
      const std::size_t group = buffer.is_integer ? 1 : 0;
      target_.buffers_[i] = target_.flat_buffers_[group]
                                .narrow(0, offset[group], numel(buffer.shape))
                                .view(torch::IntArrayRef(buffer.shape));
      offset[group] += numel(buffer.shape);
    }
  }

  TorchModel& target_;
  std::shared_ptr<FreedInput> freed_input_ = std::make_shared<FreedInput>();
  at::Generator generator_;
  std::map<std::string, std::size_t> parameter_index_, buffer_index_;
  std::set<std::size_t> made_;  ///< parameters
  std::shared_ptr<const ScriptProgram> program_;
  std::map<std::pair<std::string, bool>, int> collective_index_;  ///< by name, and true for the backward
};

/// Applies the functions one after another.
inline torch::Tensor run(const std::vector<LayerFunction>& layers, torch::Tensor value) {
  for (const LayerFunction& layer : layers) value = layer(value);
  return value;
}

}  // namespace stepcast
