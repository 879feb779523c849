#pragma once

#include <torch/torch.h>

#include "runner/torch/torch_model.hpp"

/// Collectives of the model as autograd functions. Collectives are indices into Model::collectives.
namespace stepcast {

/// Applies one collective in the forward and one in the backward; -1: the identity.
torch::Tensor apply_collectives(const TorchModel& model, const torch::Tensor& own, int forward, int backward);

/// Gathered input of tensor-parallel layers, which is freed after the forward and gathered again for the
/// backward.
struct FreedInput {
  torch::Tensor whole;  ///< shares its memory with autograd's copies
  torch::Tensor own;    ///< part of it on this rank
};

/// The same after tensor-parallel layers, whose input it frees. Collective `regather` fills it again before
/// their backward.
torch::Tensor apply_regathering(const TorchModel& model, const torch::Tensor& own, int forward, int backward,
                                int regather, const FreedInput& input);

/// Mean cross entropy of outputs [positions, own classes] over classes that are divided among ranks, in the
/// last three collectives of the model, as in Megatron's vocabulary-parallel cross entropy. \param share
/// index of this rank's part
torch::Tensor shared_cross_entropy(const TorchModel& model, const torch::Tensor& output,
                                   const torch::Tensor& target, int share);

}  // namespace stepcast
