#pragma once

#include <torch/torch.h>

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "models/model.hpp"
#include "runner/engine/torch_engine.hpp"
#include "runner/torch/numbers.hpp"

/// A Model as LibTorch tensors and functions. Includes <torch/torch.h>: only files of runner/torch and their
/// tests include this header.
namespace stepcast {

using LayerFunction = std::function<torch::Tensor(const torch::Tensor&)>;

/// Puts together what the ranks that share a model have of something: Model::exchanges[index], its number, on the own part.
/// What it is given may be overwritten; but of a shift it stays as it is, and stays there, until the wait for it, which is
/// given what is arriving.
using ExchangeFunction = std::function<torch::Tensor(int index, const torch::Tensor& own)>;

/// As if the others had the same to gather and nothing to add: what one rank alone can do.
torch::Tensor exchange_alone(const Model& model, int index, const torch::Tensor& own);

/// Whether a node of a graph puts gradients of several ranks together.
bool exchanges(const torch::autograd::Node& node);

/// Which part of a model one rank has: of its layers, of its sequences, and of its experts.
struct ModelPart {
  int share = 0;
  int context = 0;
  int expert = 0;
};

/// Zeroes each element with this probability and scales the others up. Draws from `generator`, which is
/// shared, so that masks follow from the model's seed and the order of the forwards. 0 % is the identity.
LayerFunction dropout(std::int64_t percent, const at::Generator& generator);

/// A Model that can be trained: parameters and buffers in the Model's order, one function per segment.
///
/// Initialised as PyTorch initialises its modules, from `seed` alone, so that every rank of a job starts with
/// equal parameters and float64 starts where float32 starts, up to rounding: weights and biases of
/// convolutions and linear layers uniform in ±1/sqrt(fan_in); batch norm and layer norm with weight 1 and
/// bias 0. In a model whose input are tokens, embeddings and the weights of all linear layers are normal(0,
/// 0.02) and their biases 0, as BERT and GPT-2 start. The model decides, not the rank of a layer's input,
/// since BERT's pooler starts so and takes a vector. Gradients are allocated once, zeroed in place and never
/// replaced, so that their addresses are stable. On a GPU the same distributions are drawn from its own generator, and
/// attention that is `flash` stores no probabilities (LibTorch 2).
class TorchModel {
 public:
  /// `model` must outlive this. Of the parameters only those that `held` segments own or share stay in memory,
  /// the others become undefined tensors; all where nothing is given. \throws InputError for a model with
  /// declared times, which has nothing to compute. \param part this rank's, where ranks share the model: its
  /// parameters are that part of those that one rank would have
  TorchModel(const Model& model, const Numbers& numbers, unsigned seed,
             const std::optional<std::vector<int>>& held = std::nullopt, const ModelPart& part = {});
  TorchModel& operator=(TorchModel&&) = delete;

  [[nodiscard]] const Model& model() const { return model_; }
  [[nodiscard]] torch::ScalarType dtype() const { return numbers_.dtype; }
  [[nodiscard]] const Numbers& numbers() const { return numbers_; }
  [[nodiscard]] std::size_t segments() const { return segments_.size(); }
  [[nodiscard]] const std::vector<torch::Tensor>& parameters() const { return parameters_; }
  [[nodiscard]] const std::vector<torch::Tensor>& buffers() const { return buffers_; }
  /// All buffers of one dtype group (0 floating point, 1 int64) as the one array whose parts they are.
  /// Undefined where the model has none.
  [[nodiscard]] const torch::Tensor& flat_buffers(int dtype_group) const {
    return flat_buffers_.at(static_cast<std::size_t>(dtype_group));
  }

  [[nodiscard]] torch::Tensor forward(std::size_t segment, const torch::Tensor& input) const;
  /// Whole graph: all segments in order.
  [[nodiscard]] torch::Tensor forward(const torch::Tensor& input) const;
  /// Mean over the batch, and over positions where there is one prediction per position.
  [[nodiscard]] torch::Tensor loss(const torch::Tensor& output, const torch::Tensor& target) const;

  /// Of one segment, or of all.
  void zero_grad(std::optional<std::size_t> segment = std::nullopt);
  void optimizer_step(std::optional<std::size_t> segment = std::nullopt);
  /// The model's optimizer over other tensors (shards of its parameters).
  [[nodiscard]] std::unique_ptr<torch::optim::Optimizer> make_optimizer(
      const std::vector<torch::Tensor>& tensors) const;

  /// Frees the copy of a parameter that the optimizer updates, where it is another than the parameter: who calls it updates
  /// the parameter otherwise.
  void give_up_master(int parameter) const;

  /// Of what stays from step to step; activations are 0.
  [[nodiscard]] MemoryBytes resident_bytes() const;

  /// The parameters and buffers that this rank holds, as float64.
  [[nodiscard]] FinalState final_state() const;

  /// Where dropout draws its masks from.
  [[nodiscard]] const at::Generator& masks() const { return masks_; }

  /// Calls `hook(parameter index)` on the thread of the backward right after a gradient has been accumulated.
  /// An empty function ends it. A tied parameter is called once, when its owner's part has been added to the
  /// others.
  void set_gradient_hook(std::function<void(int)> hook) { gradient_hook_ = std::move(hook); }

  /// Who communicates; an empty function ends it, and exchange_alone() takes its place.
  void set_exchange(ExchangeFunction exchange) { exchange_ = std::move(exchange); }
  [[nodiscard]] torch::Tensor exchange(int index, const torch::Tensor& own) const {
    return exchange_ ? exchange_(index, own) : exchange_alone(model_, index, own);
  }

 private:
  class Builder;
  /// \param users segments whose tied parameters stay
  void drop_unless_held(int segment, const std::vector<int>& held, const std::vector<int>& users);
  void add_gradient_hook(int index);

  const Model& model_;
  Numbers numbers_;
  std::vector<torch::Tensor> parameters_;
  std::vector<torch::Tensor> buffers_;
  std::array<torch::Tensor, 2> flat_buffers_;
  std::vector<std::vector<LayerFunction>> segments_;
  std::vector<std::unique_ptr<torch::optim::Optimizer>> optimizers_;  ///< by segment; null without parameters
  std::vector<torch::Tensor>
      masters_;  ///< by parameter, what optimizers update; the parameters themselves where not mixed
  std::vector<std::shared_ptr<torch::autograd::Node>> accumulators_;  ///< kept alive: leaves hold them weakly
  std::function<void(int)> gradient_hook_;
  ExchangeFunction exchange_;
  ModelPart part_;
  at::Generator masks_;
};

}  // namespace stepcast
