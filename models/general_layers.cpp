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

std::vector<LayerTensor> traced_buffers(const Layer& layer) {
  std::vector<LayerTensor> all = traced_tensors(layer, "buffer", "buffer");
  if (size(layer, "counters") > 0) all.push_back({"counters", {size(layer, "counters")}, true});
  return all;
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

std::vector<LayerTensor> linear_parameters(const Layer& layer) {
  return weight_and_bias(flag(layer, "bias"), size(layer, "out"), layer.input.back());
}

Gemm linear_gemm(const Layer& layer) {
  const auto width = static_cast<double>(layer.input.back());
  return {in(layer) / width, number(layer, "out"), width};
}

}  // namespace

std::vector<LayerKind> general_kinds() {
  return {{.name = "linear", .output = linear_output, .parameters = linear_parameters, .gemm = linear_gemm},
          {.name = "residual", .output = output_of_branches, .adjust = mark_sum},
          {.name = "product", .output = output_of_branches, .adjust = add_fused_gate},
          {.name = "fixed",
           .output = declared_output,
           .parameters = [](const Layer& l) { return weight_and_bias(false, size(l, "parameter") / 4); }},
          {.name = "traced",
           .output = declared_output,
           .parameters = [](const Layer& l) { return traced_tensors(l, "parameter", "weight"); },
           .buffers = traced_buffers}};
}

}  // namespace stepcast
