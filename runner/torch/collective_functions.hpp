#pragma once

#include <torch/torch.h>

#include <utility>

#include "runner/torch/tensor_memory.hpp"
#include "runner/torch/torch_model.hpp"

/// Collectives of the model as autograd functions. Collectives are indices into Model::collectives.
namespace stepcast {

using torch::autograd::AutogradContext, torch::autograd::tensor_list;

/// One collective of the model in the forward and one in the backward; -1: the identity.
struct CollectivePair : torch::autograd::Function<CollectivePair> {
  static torch::Tensor forward(AutogradContext* context, const torch::Tensor& own, const TorchModel* model,
                               int forward, int backward) {
    // NOLINTNEXTLINE: saved_data holds no pointers
    context->saved_data["model"] = reinterpret_cast<std::int64_t>(model);
    context->saved_data["backward"] = backward;
    return forward < 0 ? own.view_as(own) : model->collective(forward, own);
  }
  static tensor_list backward(AutogradContext* context, const tensor_list& gradients) {
    const auto* model = reinterpret_cast<const TorchModel*>(context->saved_data["model"].toInt());  // NOLINT
    const auto exchange = static_cast<int>(context->saved_data["backward"].toInt());
    const torch::Tensor& gradient = gradients.front();
    return {exchange < 0 ? gradient : model->collective(exchange, gradient), {}, {}, {}};
  }
};

/// True if a node of a graph runs a collective of several ranks on gradients.
inline bool runs_collective(const torch::autograd::Node& node) {
  return dynamic_cast<const torch::autograd::CppNode<CollectivePair>*>(&node) != nullptr;
}

/// Gathered input of tensor-parallel layers, which is freed after the forward and gathered again for the
/// backward.
struct FreedInput {
  torch::Tensor whole;  ///< shares its memory with autograd's copies
  torch::Tensor own;    ///< part of it on this rank
};

/// Collectives after tensor-parallel layers, whose input they free. Collective `regather` fills it again
/// before their backward.
struct RegatheringCollectives : torch::autograd::Function<RegatheringCollectives> {
  static torch::Tensor forward(AutogradContext* context, const torch::Tensor& own, const TorchModel* model,
                               int forward, int backward, int regather, const torch::Tensor& whole,
                               const torch::Tensor& part) {
    // NOLINTNEXTLINE: saved_data holds no pointers
    context->saved_data["model"] = reinterpret_cast<std::int64_t>(model);
    context->saved_data["backward"] = backward;
    context->saved_data["regather"] = regather;
    context->saved_data["whole"] = whole;
    context->save_for_backward({part});
    free_memory(whole);
    return model->collective(forward, own);
  }
  static tensor_list backward(AutogradContext* context, const tensor_list& gradients) {
    const auto* model = reinterpret_cast<const TorchModel*>(context->saved_data["model"].toInt());  // NOLINT
    torch::Tensor gradient =
        model->collective(static_cast<int>(context->saved_data["backward"].toInt()), gradients.front());
    torch::Tensor whole = context->saved_data["whole"].toTensor();
    const torch::Tensor gathered = model->collective(
        static_cast<int>(context->saved_data["regather"].toInt()), context->get_saved_variables().front());
    take_memory(whole, MemoryCategory::kActivations);
    whole.copy_(gathered);
    return {std::move(gradient), {}, {}, {}, {}, {}, {}};
  }
};

/// Mean cross entropy of outputs [positions, own classes] over classes that are divided among ranks. Three
/// collectives, the last of the model, as in Megatron's vocabulary-parallel cross entropy: the largest
/// output, the output of the target, and the sum of the exponentials. \param share index of this rank's part
struct SharedCrossEntropy : torch::autograd::Function<SharedCrossEntropy> {
  static torch::Tensor forward(AutogradContext* context, const torch::Tensor& output,
                               const torch::Tensor& target, const TorchModel* model, int share) {
    const auto first = static_cast<int>(model->model().collectives.size()) - 3;
    const torch::Tensor shifted = output - model->collective(first, output.amax(1)).unsqueeze(1);
    const torch::Tensor own = target - share * output.size(1);
    const torch::Tensor foreign = own.lt(0).logical_or(own.ge(output.size(1)));
    const torch::Tensor place = own.masked_fill(foreign, 0).unsqueeze(1);
    const torch::Tensor wanted =
        model->collective(first + 1, shifted.gather(1, place).squeeze(1).masked_fill(foreign, 0.0));
    const torch::Tensor powers = shifted.exp(), sum = model->collective(first + 2, powers.sum(1));
    context->save_for_backward({powers.div_(sum.unsqueeze(1)), place, foreign});
    return (sum.log() - wanted).mean();
  }
  static tensor_list backward(AutogradContext* context, const tensor_list& gradients) {
    const tensor_list saved = context->get_saved_variables();
    const torch::Tensor one =
        torch::ones_like(saved[1], saved[0].options()).masked_fill(saved[2].unsqueeze(1), 0.0);
    const torch::Tensor gradient = saved[0].scatter_add(1, saved[1], -one);
    return {gradient * (gradients.front() / static_cast<double>(gradient.size(0))), {}, {}, {}};
  }
};

}  // namespace stepcast
