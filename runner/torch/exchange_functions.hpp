#pragma once

#include <torch/torch.h>

#include "runner/torch/torch_model.hpp"

/// What ranks that share a model put together, as autograd sees it. Exchanges are numbers of Model::exchanges.
namespace stepcast {

/// One exchange in the forward and one in the backward; -1: the identity.
torch::Tensor put_together(const TorchModel& model, const torch::Tensor& own, int forward, int backward);

/// What shared layers were given, which ranks put together for the forward and give up until the backward.
struct GivenUp {
  torch::Tensor whole;  ///< its memory; autograd's copies share it
  torch::Tensor own;    ///< the part of it that this rank has
};

/// The same behind shared layers, whose input is freed, and filled once more by the exchange `again` before their backward.
torch::Tensor put_together_again(const TorchModel& model, const torch::Tensor& own, int forward, int backward,
                                 int again, const GivenUp& input);

/// Mean cross entropy of outputs [positions, own classes], where each rank has those of its part of the classes, in the
/// last three exchanges, after Megatron's vocabulary-parallel cross entropy. \param share number of this rank's part
torch::Tensor shared_cross_entropy(const TorchModel& model, const torch::Tensor& output,
                                   const torch::Tensor& target, int share);

}  // namespace stepcast
