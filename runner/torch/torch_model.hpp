#pragma once

#include <torch/torch.h>

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "models/model.hpp"
#include "runner/engine/torch_engine.hpp"
#include "runner/torch/training_dtypes.hpp"

/// A Model as LibTorch tensors and functions. Includes <torch/torch.h>: only files of runner/torch and their
/// tests include this header.
namespace stepcast {

using LayerFunction = std::function<torch::Tensor(const torch::Tensor&)>;

/// Runs collective Model::collectives[index] on this rank's part and returns its result. The input may be
/// overwritten. The input of a shift stays as it is until the wait for it, which receives the arriving array.
using CollectiveFunction = std::function<torch::Tensor(int index, const torch::Tensor& own)>;

/// Result of the collective on one rank alone, as if the other ranks gathered the same and added nothing,
/// with the copies that a run makes of what it sends and receives.
torch::Tensor collective_alone(const Model& model, int index, const torch::Tensor& own);

/// Part of a model on one rank: of its layers, of its sequences, and of its experts.
struct ModelPart {
  int share = 0, context = 0, expert = 0;
  int expert_share = 0;  ///< of each expert
};

/// Zeroes each element with this probability and scales the others up. Draws from the shared `generator`, so
/// that masks follow from the model's seed and the order of forwards. 0 % is the identity.
inline LayerFunction dropout(std::int64_t percent, const at::Generator& generator) {
  if (percent == 0) return [](const torch::Tensor& x) { return x; };
  return [kept = 1.0 - static_cast<double>(percent) / 100.0, generator](const torch::Tensor& x) {
    return x * torch::empty_like(x).bernoulli_(kept, generator).div_(kept);
  };
}

/// A Model that can be trained: parameters and buffers in the Model's order, one function per segment.
///
/// Initialised from `seed` alone, as PyTorch initialises its modules, so that every rank starts with equal
/// parameters and float64 starts where float32 does, up to rounding. Weights and biases of convolutions and
/// linear layers are uniform in ±1/sqrt(fan_in); batch norm and layer norm have weight 1 and bias 0. In a
/// model with tokens as input, embeddings and the weights of all linear layers are normal(0, 0.02) and their
/// biases 0, as in BERT and GPT-2. (The model decides, since the input of BERT's pooler is a vector.)
/// Gradients are allocated once and zeroed in place, so that their addresses are stable. A GPU draws the same
/// distributions from its own generator, and `flash` attention stores no probabilities there (LibTorch 2).
class TorchModel {
 public:
  /// Creates the tensors. Parameters that no `held` segment owns or shares become undefined tensors; without
  /// `held` all stay. \param part of the model on this rank \pre `model` outlives this \throws InputError for
  /// a model with declared times, which has nothing to compute
  TorchModel(const Model& model, const TrainingDtypes& dtypes, unsigned seed,
             const std::optional<std::vector<int>>& held = std::nullopt, const ModelPart& part = {});
  TorchModel& operator=(TorchModel&&) = delete;

  [[nodiscard]] const Model& model() const { return model_; }
  [[nodiscard]] torch::ScalarType dtype() const { return dtypes_.dtype; }
  [[nodiscard]] const TrainingDtypes& dtypes() const { return dtypes_; }
  [[nodiscard]] std::size_t segments() const { return segments_.size(); }
  [[nodiscard]] const std::vector<torch::Tensor>& parameters() const { return parameters_; }
  [[nodiscard]] const std::vector<torch::Tensor>& buffers() const { return buffers_; }
  /// All buffers of one dtype group (0 floating point, 1 int64) as one array. Undefined if the model has
  /// none.
  [[nodiscard]] const torch::Tensor& flat_buffers(int dtype_group) const {
    return flat_buffers_.at(dtype_group);
  }

  [[nodiscard]] torch::Tensor forward(std::size_t segment, const torch::Tensor& input) const;
  /// Runs all segments in order, as one graph.
  [[nodiscard]] torch::Tensor forward(const torch::Tensor& input) const;
  /// Mean over the batch, and over positions if there is one prediction per position.
  [[nodiscard]] torch::Tensor loss(const torch::Tensor& output, const torch::Tensor& target) const;

  /// Acts on one segment, or on all.
  void zero_grad(std::optional<std::size_t> segment = std::nullopt);
  void optimizer_step(std::optional<std::size_t> segment = std::nullopt);
  /// The model's optimizer over other tensors (shards of its parameters).
  [[nodiscard]] std::unique_ptr<torch::optim::Optimizer> make_optimizer(
      const std::vector<torch::Tensor>& tensors) const;

  /// Frees the float32 copy of a parameter, which the caller updates otherwise.
  void free_master(int parameter) const;

  /// Bytes that stay from step to step; activations are 0.
  [[nodiscard]] MemoryBytes resident_bytes() const;

  /// Parameters and buffers on this rank, as float64.
  [[nodiscard]] FinalState final_state() const;

  /// Generator of dropout masks.
  [[nodiscard]] const at::Generator& masks() const { return masks_; }

  /// Sets a hook that is called with the parameter's index on the thread of the backward after a gradient has
  /// been accumulated. An empty function removes it. For a tied parameter it is called once, after the
  /// owner's part has been added.
  void set_gradient_hook(std::function<void(int)> hook) { gradient_hook_ = std::move(hook); }

  /// Sets the function that communicates. An empty function restores collective_alone().
  void set_collective(CollectiveFunction collective) { collective_ = std::move(collective); }
  [[nodiscard]] torch::Tensor collective(int index, const torch::Tensor& own) const {
    return collective_ ? collective_(index, own) : collective_alone(model_, index, own);
  }

 private:
  friend class LayerBuilder;
  /// \param users segments whose tied parameters stay
  void drop_unless_held(int segment, const std::vector<int>& held, const std::vector<int>& users);
  void add_gradient_hook(int index);
  void step_muon(int index);

  const Model& model_;
  TrainingDtypes dtypes_;
  std::vector<torch::Tensor> parameters_, buffers_;
  std::array<torch::Tensor, 2> flat_buffers_;
  std::vector<std::vector<LayerFunction>> segments_;
  std::vector<std::unique_ptr<torch::optim::Optimizer>> optimizers_;  ///< by segment; null without parameters
  /// By parameter: tensor that the optimizer updates; without mixed precision the parameter.
  std::vector<torch::Tensor> masters_;
  std::vector<torch::Tensor> momenta_;  ///< by parameter; undefined but for those that Muon updates
  std::vector<std::shared_ptr<torch::autograd::Node>> accumulators_;  ///< kept alive: leaves hold them weakly
  std::function<void(int)> gradient_hook_;
  CollectiveFunction collective_;
  ModelPart part_;
  at::Generator masks_;
};

}  // namespace stepcast
