#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runner/torch/collective_functions.hpp"
#include "runner/torch/torch_model.hpp"

namespace stepcast {

class ScriptProgram;

/// Turns the layers of a Model into functions over tensors and creates the tensors that they use.
class LayerBuilder {
 public:
  LayerBuilder(TorchModel& target, unsigned seed);

  std::vector<LayerFunction> chain(const std::vector<Layer>& layers);
  /// \throws std::logic_error if a parameter of the Model belongs to no layer
  void check_complete() const;

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
  torch::Tensor parameter(const std::string& name);
  /// Creates a parameter of ones, as norms begin.
  torch::Tensor ones(const std::string& name);
  /// Parameter of an earlier layer.
  [[nodiscard]] torch::Tensor held(const std::string& name) const {
    return target_.parameters_[parameter_index_.at(name)];
  }
  [[nodiscard]] torch::Tensor buffer(const std::string& name) const {
    return target_.buffers_[buffer_index_.at(name)];
  }
  /// Creates a parameter drawn from normal(0, 0.02), in float64 whatever the dtype. Tensor-parallel ranks
  /// draw the whole and keep their part.
  torch::Tensor normal(const std::string& name);
  /// Creates weight and bias of a convolution or linear layer, drawn in float64 whatever the dtype. The bias
  /// is undefined if the layer has none.
  std::pair<torch::Tensor, torch::Tensor> weights(const Layer& layer);

  /// Index of a collective of the model; -1: it has none of that name.
  [[nodiscard]] int collective_index(const std::string& name, bool backward) const;
  /// Applies the collectives of that name, forward and backward; the identity if there are none.
  [[nodiscard]] LayerFunction collective(const std::string& name);
  /// Returns the parameter; its gradient is summed over the ranks if the model has a collective of that name.
  [[nodiscard]] std::function<torch::Tensor()> summed(const std::string& name,
                                                      const torch::Tensor& parameter);

  /// The TorchScript file, loaded once.
  std::shared_ptr<const ScriptProgram> program(const std::string& path);

  /// Linear layer with normal weights.
  LayerFunction projection(const std::string& name, bool has_bias = false);
  /// The layer `base` of this name, with its adapter if the model has one (see parameters_of), whose B starts
  /// at 0.
  LayerFunction adapted(const std::string& name, LayerFunction base);
  /// x / sqrt(mean(x^2) + epsilon) * weight, over the last dimension.
  LayerFunction rms_norm(const std::string& name);

 private:
  LayerFunction build(const Layer& layer);
  void make_buffers();

  TorchModel& target_;
  std::shared_ptr<FreedInput> freed_input_ = std::make_shared<FreedInput>();
  at::Generator generator_;
  std::map<std::string, std::size_t> parameter_index_, buffer_index_;
  std::set<std::size_t> made_;  ///< parameters
  std::shared_ptr<const ScriptProgram> program_;
  std::map<std::pair<std::string, bool>, int> collective_index_;  ///< by name, and true for the backward
};

/// Builders of layers by kind: one table per file.
using LayerTable = std::map<std::string, LayerFunction (*)(LayerBuilder&, const Layer&)>;
extern const LayerTable kImageLayers, kTokenLayers, kExpertLayers, kAttentionLayers, kStateSpaceLayers,
    kScriptLayers;

/// Applies the functions one after another.
torch::Tensor run(const std::vector<LayerFunction>& layers, torch::Tensor value);

}  // namespace stepcast
