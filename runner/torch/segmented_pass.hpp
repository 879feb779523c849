#pragma once

#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/torch.h>

#include <cstddef>
#include <vector>

#include "runner/torch/torch_model.hpp"

namespace stepcast {

/// One micro-batch on its way through the segments that a rank holds, each segment its own autograd graph:
/// its input is detached from the segment before, and the gradient of that input is handed to the segment
/// before by hand. Gradients equal those of the whole graph bit for bit, since the same kernels see the same
/// numbers in the same order. Activations of a segment are freed when its backward is done.
///
/// Boundaries are tensors by segment: what segment s gives is the input of s + 1, wherever that runs.
class SegmentedPass {
 public:
  explicit SegmentedPass(TorchModel& model)
      : model_(model), segments_(model.segments()), inputs_(model.segments() + 1) {}

  /// The samples: input of the first segment.
  void begin(torch::Tensor input) { receive(0, std::move(input)); }
  /// The input of `segment` came from another rank, or is on its way into this memory.
  void receive(std::size_t segment, torch::Tensor input);
  /// The gradient of the loss with respect to the output of `segment`, likewise.
  void receive_gradient(std::size_t segment, torch::Tensor gradient);

  /// \pre its input is there. \param checkpointed keeps nothing but what was received, or with `keeps_input` its input; a
  /// recompute follows
  void forward(std::size_t segment, bool checkpointed = false, bool keeps_input = false);
  /// The forward once more, with the random numbers of the first time.
  void recompute(std::size_t segment);
  /// Forward and backward of `scale` times the loss; returns the unscaled value, which a device may still compute.
  torch::Tensor loss(const torch::Tensor& target, double scale = 1.0);
  /// \pre the gradient of its output is there
  void backward(std::size_t segment);
  /// The same in two: the gradient of the input now, and later those of weights from the gradients of their operations'
  /// outputs, which are kept until then; no operation computes anything twice. Parameters beside which there is no matrix
  /// (norms) have their gradients made in the first half, and accumulated in the second. \pre no weight is used twice,
  /// behind itself
  void backward_input(std::size_t segment);
  void backward_weight(std::size_t segment);

  /// What goes to the rank that holds the next segment, or the one before.
  [[nodiscard]] torch::Tensor take_output(std::size_t segment);
  [[nodiscard]] torch::Tensor take_input_gradient(std::size_t segment);

 private:
  /// Gradients on their way to parameters, stopped before them.
  struct Stopped {
    torch::autograd::edge_list at;
    torch::autograd::variable_list gradients;
    torch::autograd::edge_list parameters;
  };
  struct Boundary {
    torch::Tensor input;     ///< of the graph
    torch::Tensor output;    ///< of the graph
    torch::Tensor gradient;  ///< with respect to the output
    torch::Tensor kept;      ///< input of a checkpointed segment
    torch::Tensor random_state;
    std::vector<Stopped> stopped;  ///< between the halves of a backward
    bool received = false;
  };
  TorchModel& model_;
  std::vector<Boundary> segments_;
  std::vector<torch::Tensor> inputs_;  ///< waiting for their segment; the last is the loss's
};

}  // namespace stepcast
