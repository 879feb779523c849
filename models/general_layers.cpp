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

std::vector<LayerTensor> traced_tensors(const Layer& layer, const char* attribute, const char* suffix) {
  if (size(layer, attribute) == 0) return {};
  return {{suffix, {size(layer, attribute) / 4}}};
}

Shape declared_output(const Layer& layer) {
  if (size(layer, "parameter") % 4 != 0)
    throw InputError("parameter must be a multiple of 4 B, the size of a float32");
  return layer.input;
}

/// One kernel for SiLU and the product: reads gate and value, and saves only them. Its backward writes the
/// gradients of both, 2 f for f outputs, and has freed the product. SiLU's own layer counts the rest. A
/// compiler saves the same.
void add_fused_gate(const Layer& layer, LayerCost& cost) {
  if (flag(layer, kCompiled)) cost.saves_input = false;
  if (!flag(layer, kTransformerEngine)) return;
  cost.saves_input = false;
  const Flop flop = cost.kernels.front().flop;
  cost.kernels.front() = moves(out(layer), 2.0 * out(layer), 0);
  cost.kernels.front().flop = flop;
  cost.workspace.backward = float32_bytes(2.0 * out(layer));
}

void mark_sum(const Layer& /*layer*/, LayerCost& cost) { cost.kernels.front().role = KernelRole::kResidual; }

Shape linear_output(const Layer& layer) {
  Shape output = layer.input;
  output.back() = size(layer, "out");
  return output;
}

}  // namespace

std::vector<LayerKind> general_kinds() {
  return {
      {.name = "linear",
       .attributes = {Attribute::count("out"), Attribute::flag("bias", true),
                      Attribute::count_or(kAdapterRank, 0)},
       .input = {1, 2, "a vector or a sequence of vectors", "; put a flatten before it"},
       .output = linear_output,
       .parameters =
           [](const Layer& l) { return weight_and_bias(flag(l, "bias"), size(l, "out"), l.input.back()); },
       .gemm =
           [](const Layer& l) {
             const auto width = static_cast<double>(l.input.back());
             return Gemm{in(l) / width, number(l, "out"), width};
           },
       .forward = kGemmForward,
       .backward = kGemmBackward,
       .saves_input = true,
       .ready_order = ReadyOrder::kReversed},
      // Only the addition; its backward adds the gradients that both branches return.
      {.name = "residual",
       .branches = {"body", "shortcut"},
       .output = output_of_branches,
       .forward = {0, 3},
       .backward = {3, 0},
       .adjust = mark_sum},
      // Element by element: the gate of a gated feed-forward layer. Backward reads dy and both factors,
      // writes the gradients of both, and adds what the branches return.
      {.name = "product",
       .attributes = {Attribute::flag(kTransformerEngine), Attribute::flag(kCompiled)},
       .branches = {"gate", "value"},
       .output = output_of_branches,
       .flop = 1,
       .forward = {0, 3},
       .backward = {3, 5},
       .saves_input = true,
       .adjust = add_fused_gate},
      {.name = "fixed",
       .attributes = {{"forward", Unit::kNanoseconds},
                      {"backward", Unit::kNanoseconds},
                      {"parameter", Unit::kBytes, {}, 4},
                      {"output", Unit::kBytes, 0}},
       .output = declared_output,
       .parameters = [](const Layer& l) { return weight_and_bias(false, size(l, "parameter") / 4); },
       .is_view = true},
      // A part of a segment whose times a trace contains: a parameter, or buffers, in float32 and int64.
      {.name = "traced",
       .attributes = {{"parameter", Unit::kBytes, 0},
                      {"buffer", Unit::kBytes, 0},
                      {"counters", Unit::kCount, 0},
                      {"output", Unit::kBytes, 0}},
       .output = declared_output,
       .parameters = [](const Layer& l) { return traced_tensors(l, "parameter", "weight"); },
       .buffers =
           [](const Layer& l) {
             std::vector<LayerTensor> all = traced_tensors(l, "buffer", "buffer");
             if (size(l, "counters") > 0) all.push_back({"counters", {size(l, "counters")}, true});
             return all;
           },
       .is_view = true},
  };
}

}  // namespace stepcast
