#include "models/layer_kinds.hpp"

namespace stepcast {
namespace {

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

std::vector<LayerKind> image_kinds() {
  return {{.name = "conv",
           .output = [](const Layer& l) { return windows(l, size(l, "out"), size(l, "padding")); },
           .parameters = convolution_parameters,
           .gemm = convolution},
          {.name = "batch_norm",
           .parameters = [](const Layer& l) { return weight_and_bias(true, l.input[0]); },
           .buffers = running_statistics},
          {.name = "max_pool",
           .output = [](const Layer& l) { return windows(l, l.input[0], 0); },
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
