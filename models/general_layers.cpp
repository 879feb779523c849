#include "models/layer_kinds.hpp"

/// Layers of any network, and those of images.
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

/// Positions of the kernel's window over an image of channels x height x width, zero outside.
Shape windows(const Layer& layer, std::int64_t channels, std::int64_t padding) {
  Shape result{channels};
  for (const std::int64_t extent : {layer.input[1], layer.input[2]}) {
    const std::int64_t room = extent + 2 * padding - size(layer, "kernel");
    if (room < 0)
      throw InputError("kernel " + std::to_string(size(layer, "kernel")) + " is larger than the input " +
                       shape_text(layer.input) + " with padding " + std::to_string(padding));
    result.push_back(room / size(layer, "stride") + 1);
  }
  return result;
}

Gemm convolution(const Layer& layer) {
  return {out(layer) / number(layer, "out"), number(layer, "out"),
          number(layer, "kernel") * number(layer, "kernel") * static_cast<double>(layer.input[0])};
}

std::vector<LayerTensor> convolution_parameters(const Layer& l) {
  return weight_and_bias(flag(l, "bias"), size(l, "out"), l.input[0], size(l, "kernel"), size(l, "kernel"));
}

std::vector<LayerTensor> running_statistics(const Layer& layer) {
  return {{"running_mean", {layer.input[0]}},
          {"running_var", {layer.input[0]}},
          {"num_batches_tracked", {}, true}};
}

/// Indices of the maxima are saved and moved, 8 B each.
void add_indices(const Layer& layer, LayerCost& cost) {
  Kernel& kernel = cost.kernels.front();
  kernel.kept.size = Bytes(kInt64 * out(layer));
  kernel.forward += kernel.kept.size;
  kernel.backward += kernel.kept.size;
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
           .buffers = traced_buffers},
          {.name = "conv",
           .output = [](const Layer& l) { return windows(l, size(l, "out"), size(l, "padding")); },
           .parameters = convolution_parameters,
           .gemm = convolution},
          {.name = "batch_norm",
           .parameters = [](const Layer& l) { return weight_and_bias(true, l.input[0]); },
           .buffers = running_statistics},
          {.name = "max_pool",
           .output = [](const Layer& l) { return windows(l, l.input[0], size(l, "padding")); },
           .adjust = add_indices},
          {.name = "adaptive_avg_pool",
           .output =
               [](const Layer& l) {
                 return Shape{l.input[0], size(l, "out"), size(l, "out")};
               },
           .adjust = [](const Layer& l, LayerCost& cost) { cost.saves_input = size(l, "out") > 1; }},
          {.name = "flatten", .output = [](const Layer& l) { return Shape{numel(l.input)}; }}};
}

}  // namespace stepcast
