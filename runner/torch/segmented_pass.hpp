#pragma once

#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/torch.h>

#include <cstddef>
#include <vector>

#include "runner/torch/torch_model.hpp"

namespace stepcast {

/// One micro-batch on its way through the segments of a rank. Each segment has its own autograd graph: its
/// input is detached from the segment before, and its gradient passed to that segment explicitly. Gradients
/// equal those of the whole graph bit for bit, since the same kernels run in the same order. The backward of
/// a segment frees its activations.
///
/// Boundaries are tensors by segment: the output of segment s is the input of s + 1, on whichever rank that
/// runs.
class SegmentedPass {
 public:
  explicit SegmentedPass(TorchModel& model)
      : model_(model), segments_(model.segments()), inputs_(model.segments() + 1) {}

  /// Sets the input of `segment`: the samples, or what another rank sent or is sending into this memory.
  void receive(std::size_t segment, torch::Tensor input);
  /// Sets the gradient of the loss with respect to the output of `segment`, in the same way.
  void receive_gradient(std::size_t segment, torch::Tensor gradient);

  /// \param checkpointed saves nothing but what was received, or with `keeps_input` its input; a recompute
  /// follows \pre the input of the segment is set
  void forward(std::size_t segment, bool checkpointed = false, bool keeps_input = false);
  /// Repeats the forward with the random numbers of the first time.
  void recompute(std::size_t segment);
  /// Runs forward and backward of `scale` times the loss. Returns the unscaled value, which a device may
  /// still compute.
  torch::Tensor loss(const torch::Tensor& target, double scale = 1.0);
  /// \pre the gradient of its output is set
  void backward(std::size_t segment);
  /// Backward in two halves: the gradient of the input now, the gradients of weights later, from the saved
  /// gradients of the outputs of their operations. No operation computes anything twice. Gradients of
  /// parameters without a matrix (norms) are made in the first half and accumulated in the second. \pre no
  /// weight is used twice on one path
  void backward_input(std::size_t segment);
  void backward_weight(std::size_t segment);

  /// Array for the rank that holds the next segment, or the one before.
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
