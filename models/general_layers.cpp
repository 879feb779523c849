#include "models/layer_kinds.hpp"

namespace stepcast {
namespace {

const Shape& branch_output(const Layer& layer, const std::vector<Layer>& branch) {
  return branch.empty() ? layer.input : branch.back().output;
}

Shape output_of_branches(const Layer& layer) {
  const Shape& first = branch_output(layer, layer.body);
  const Shape& second = branch_output(layer, layer.shortcut);
  if (first == second) return first;
  const std::vector<std::string>& names = layer_kind(layer.kind).branches;
  throw InputError(names[0] + " gives " + shape_text(first) + " and " + names[1] + " " + shape_text(second) +
                   "; they cannot be " + (layer.kind == "residual" ? "added" : "multiplied"));
}

Shape declared_output(const Layer& layer) {
  if (layer.sizes.at("parameter") % 4 != 0)
    throw InputError("parameter must be a multiple of 4 B, the size of a float32");
  return layer.input;
}

}  // namespace

std::vector<LayerKind> general_kinds() {
  return {
      {.name = "linear",
       .torch_class = "Linear",
       .attributes = {{"out", Unit::kCount, {}, 1}, {"bias", Unit::kFlag, 1, 0}},
       .input = {1, 2, "a vector or a sequence of vectors", "; put a flatten before it"},
       .output =
           [](const Layer& l) {
             Shape output = l.input;
             output.back() = l.sizes.at("out");
             return output;
           },
       .parameters =
           [](const Layer& l) {
             return weight_and_bias(l, {l.sizes.at("out"), l.input.back()});
           },
       .product =
           [](const Layer& l) {
             const auto width = static_cast<double>(l.input.back());
             return Gemm{in(l) / width, number(l, "out"), width};
           },
       .forward = kMatrixForward,
       .backward = kMatrixBackward,
       .saves_input = true,
       .ready_order = ReadyOrder::kReversed},
      // Only the addition; body and shortcut are layers of their own. Backward hands the gradient to both
      // unchanged and adds what they return.
      {.name = "residual",
       .branches = {"body", "shortcut"},
       .output = output_of_branches,
       .forward = {0, 3},
       .backward = {3, 0}},
      // Element by element: the gate of a gated feed-forward layer. Backward reads dy and both factors, writes the
      // gradients of both, and adds what the branches return.
      {.name = "product",
       .branches = {"gate", "value"},
       .output = output_of_branches,
       .flop = 1,
       .forward = {0, 3},
       .backward = {3, 5},
       .saves_input = true},
      {.name = "fixed",
       .attributes = {{"forward", Unit::kNanoseconds, {}, 0},
                      {"backward", Unit::kNanoseconds, {}, 0},
                      {"parameter", Unit::kBytes, {}, 4},
                      {"output", Unit::kBytes, 0, 0}},
       .output = declared_output,
       .parameters =
           [](const Layer& l) {
             return std::vector<LayerTensor>{{"weight", {l.sizes.at("parameter") / 4}}};
           },
       .is_view = true},
  };
}

}  // namespace stepcast
