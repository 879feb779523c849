#pragma once

#include <torch/torch.h>

#include <vector>

#include "runner/torch/executor.hpp"
#include "runner/torch/torch_model.hpp"

namespace stepcast {

/// The parameters and buffers that this rank holds, as float64.
inline FinalState final_state_of(const TorchModel& model) {
  const auto copies = [](const std::vector<torch::Tensor>& tensors) {
    std::vector<std::vector<double>> values;
    for (const torch::Tensor& tensor : tensors) {
      values.emplace_back();
      if (!tensor.defined()) continue;
      const torch::Tensor flat = tensor.detach().to(torch::kFloat64).contiguous();
      values.back().assign(flat.data_ptr<double>(), flat.data_ptr<double>() + flat.numel());
    }
    return values;
  };
  return {copies(model.parameters()), copies(model.buffers())};
}

}  // namespace stepcast
