#include "runner/torch/segmented_pass.hpp"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <functional>
#include <map>
#include <utility>

#include "runner/torch/collective_functions.hpp"

namespace stepcast {
namespace {

using torch::autograd::Edge, torch::autograd::edge_list, torch::autograd::Node,
    torch::autograd::variable_list;

/// torch::autograd::backward without its checks, which cost a microsecond per segment. \param parameters
/// empty: all
void run_backward(const edge_list& from, const variable_list& gradients, const edge_list& parameters = {}) {
  torch::autograd::Engine::get_default_engine().execute(from, gradients,
                                                        /*keep_graph=*/false, /*create_graph=*/false,
                                                        /*accumulate_grad=*/true, parameters);
}

void run_backward(const torch::Tensor& output, const torch::Tensor& gradient) {
  run_backward({torch::autograd::impl::gradient_edge(output)}, {gradient});
}

/// Parameters of a segment's graph, by the operations between its output and its input that use them.
class UsedParameters {
 public:
  struct Use {
    std::shared_ptr<Node> operation;
    edge_list weights;  ///< of an operation with a matrix: all but those whose gradients ranks put together
  };

  UsedParameters(const torch::Tensor& output, const torch::Tensor& input)
      : input_(torch::autograd::impl::grad_accumulator(input)) {
    walk(output.grad_fn());
    std::ranges::sort(uses, std::greater(), [](const Use& one) { return one.operation->sequence_nr(); });
  }
  [[nodiscard]] Edge input() const { return {input_, 0}; }

  std::vector<Use> uses;  ///< that can wait, as a backward comes to them
  edge_list others;

 private:
  /// Whether the input is reached from here.
  bool walk(const std::shared_ptr<Node>& node) {
    if (node == nullptr) return false;
    const auto [found, is_new] = reaches_.try_emplace(node.get(), node == input_);
    if (!is_new) return found->second;
    bool reaches = found->second;
    for (const Edge& edge : node->next_edges()) reaches = walk(edge.function) || reaches;
    reaches_[node.get()] = reaches;
    if (reaches) note(node);
    return reaches;
  }

  void note(const std::shared_ptr<Node>& operation) {
    edge_list own, summed;
    for (const Edge& edge : operation->next_edges())
      if (edge.is_valid() && !reaches_.at(edge.function.get())) collect(edge.function, own, summed);
    const bool has_matrix = std::ranges::any_of(own, [](const Edge& edge) {
      return dynamic_cast<torch::autograd::AccumulateGrad&>(*edge.function).variable.dim() > 1;
    });
    others.insert(others.end(), summed.begin(), summed.end());
    if (has_matrix)
      uses.push_back({operation, std::move(own)});
    else
      others.insert(others.end(), own.begin(), own.end());
  }

  /// The parameters behind a node from which the input is not reached.
  static void collect(const std::shared_ptr<Node>& node, edge_list& own, edge_list& summed) {
    if (dynamic_cast<torch::autograd::AccumulateGrad*>(node.get()) != nullptr) own.emplace_back(node, 0);
    for (const Edge& edge : node->next_edges())
      if (edge.is_valid()) collect(edge.function, runs_collective(*node) ? summed : own, summed);
  }

  std::shared_ptr<Node> input_;
  std::map<Node*, bool> reaches_;
};

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
  boundary.input = segment == 0
                       ? std::move(input)
                       : input.detach().requires_grad_(model_.model().segments[segment].passes_gradient());
  boundary.output = model_.forward(segment, boundary.input);
  inputs_[segment + 1] = boundary.output;
}

void SegmentedPass::recompute(std::size_t segment) {
  Boundary& boundary = segments_[segment];
  if (boundary.kept.defined()) inputs_[segment] = std::exchange(boundary.kept, {});
  from_state(model_.masks(), std::exchange(boundary.random_state, {}), [&] { forward(segment); });
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

void SegmentedPass::backward_input(std::size_t segment) {
  Boundary& boundary = segments_[segment];
  inputs_[segment + 1].reset();
  const UsedParameters used(boundary.output, boundary.input);
  edge_list wanted{used.input()};
  wanted.insert(wanted.end(), used.others.begin(), used.others.end());
  for (const auto& [operation, weights] : used.uses)
    for (std::uint32_t i = 0; i < operation->num_inputs(); ++i) wanted.emplace_back(operation, i);
  const variable_list gradients = torch::autograd::Engine::get_default_engine().execute(
      {torch::autograd::impl::gradient_edge(boundary.output)}, {std::exchange(boundary.gradient, {})},
      /*keep_graph=*/true, /*create_graph=*/false, /*accumulate_grad=*/false, wanted);
  segments_[segment - 1].gradient = gradients.front();
  std::size_t at = 1;
  const auto stop = [&](std::size_t count, const edge_list& parameters) {
    Stopped stopped{{}, {}, parameters};
    for (const std::size_t end = at + count; at < end; ++at) {
      if (!gradients[at].defined()) continue;
      stopped.at.push_back(wanted[at]);
      stopped.gradients.push_back(gradients[at]);
    }
    if (!stopped.at.empty()) boundary.stopped.push_back(std::move(stopped));
  };
  stop(used.others.size(), {});
  for (const auto& [operation, weights] : used.uses) stop(operation->num_inputs(), weights);
  if (boundary.stopped.empty()) boundary = {};
}

void SegmentedPass::backward_weight(std::size_t segment) {
  if (!model_.model().segments[segment].passes_gradient()) return backward(segment);
  Boundary boundary = std::exchange(segments_[segment], {});
  for (auto& [at, gradients, parameters] : boundary.stopped)
    run_backward(at, std::exchange(gradients, {}), parameters);
}

torch::Tensor SegmentedPass::take_output(std::size_t segment) {
  return std::exchange(inputs_[segment + 1], {}).detach();
}

torch::Tensor SegmentedPass::take_input_gradient(std::size_t segment) {
  return std::exchange(segments_[segment - 1].gradient, {});
}

}  // namespace stepcast
