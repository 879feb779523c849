#pragma once

#include <torch/torch.h>

#include <functional>
#include <string>
#include <vector>

#include "models/given_layer.hpp"

/// What operators compute, observed while they run. Includes LibTorch.
namespace stepcast {

/// Operators that `run` calls on this thread, with costs per sample. Of nested calls the outermost with a row
/// in models/operators.cpp counts, else the innermost. Tensors that the backward needs count once.
/// \param weights parameters \param apart tensors that other parts account for: input and output
std::vector<GivenOperator> record_operators(double batch, const std::vector<torch::Tensor>& weights,
                                            const std::vector<torch::Tensor>& apart,
                                            const std::function<void()>& run);

}  // namespace stepcast
