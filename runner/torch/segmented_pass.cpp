#include "runner/torch/segmented_pass.hpp"

#include <ATen/core/Generator.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>

namespace stepcast {
namespace {

/// As torch::autograd::backward, without its checks, which cost a microsecond per segment.
void run_backward(const torch::Tensor& output, const torch::Tensor& gradient) {
  torch::autograd::Engine::get_default_engine().execute({torch::autograd::impl::gradient_edge(output)},
                                                        {gradient},
                                                        /*keep_graph=*/false, /*create_graph=*/false,
                                                        /*accumulate_grad=*/true);
}

torch::Tensor state_of(at::Generator generator) {
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

void set_state(at::Generator generator, const torch::Tensor& state) {
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

}  // namespace

void SegmentedPass::receive(std::size_t segment, torch::Tensor input) {
  inputs_[segment] = std::move(input);
  segments_[segment].received = true;
}

void SegmentedPass::receive_gradient(std::size_t segment, torch::Tensor gradient) {
  segments_[segment].gradient = std::move(gradient);
}

void SegmentedPass::forward(std::size_t segment, bool checkpointed, bool keeps_input) {
  torch::Tensor input = std::exchange(inputs_[segment], {});
  Boundary& boundary = segments_[segment];
  if (checkpointed) {
    const torch::NoGradGuard no_grad;
    boundary.random_state = state_of(model_.masks());
    inputs_[segment + 1] = model_.forward(segment, input);
    if (boundary.received || keeps_input) boundary.kept = std::move(input);
    return;
  }
  const torch::AutoGradMode enabled(true);
  boundary.input = segment == 0 ? std::move(input) : input.detach().requires_grad_();
  boundary.output = model_.forward(segment, boundary.input);
  inputs_[segment + 1] = boundary.output;
}

void SegmentedPass::recompute(std::size_t segment) {
  Boundary& boundary = segments_[segment];
  if (boundary.kept.defined()) inputs_[segment] = std::exchange(boundary.kept, {});
  const torch::Tensor now = state_of(model_.masks());
  set_state(model_.masks(), std::exchange(boundary.random_state, {}));
  forward(segment);
  set_state(model_.masks(), now);
}

torch::Tensor SegmentedPass::loss(const torch::Tensor& target, double scale) {
  const torch::AutoGradMode enabled(true);
  const torch::Tensor output = std::exchange(inputs_.back(), {}).detach().requires_grad_();
  const torch::Tensor value = model_.loss(output, target);
  run_backward(value, torch::full({}, scale, value.options()));
  segments_.back().gradient = output.grad();
  return value.detach();
}

void SegmentedPass::backward(std::size_t segment) {
  Boundary boundary = std::exchange(segments_[segment], {});
  inputs_[segment + 1].reset();  // what recomputing the last segment left for nobody
  if (boundary.output.requires_grad()) run_backward(boundary.output, boundary.gradient);
  if (segment > 0) segments_[segment - 1].gradient = boundary.input.grad();
}

torch::Tensor SegmentedPass::take_output(std::size_t segment) {
  return std::exchange(inputs_[segment + 1], {}).detach();
}

torch::Tensor SegmentedPass::take_input_gradient(std::size_t segment) {
  return std::exchange(segments_[segment - 1].gradient, {});
}

}  // namespace stepcast
