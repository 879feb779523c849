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

const InputForm kImage{3, 3, "channels x height x width"};

}  // namespace

std::vector<LayerKind> image_kinds() {
  return {
      {.name = "conv",
       .attributes = {Attribute::count("out"), Attribute::count("kernel"),
                      Attribute::count_or("stride", 1, 1), Attribute::count_or("padding", 0),
                      Attribute::flag("bias", true)},
       .input = kImage,
       .output = [](const Layer& l) { return windows(l, size(l, "out"), size(l, "padding")); },
       .parameters = convolution_parameters,
       .gemm = convolution,
       .forward = kGemmForward,
       .backward = kGemmBackward,
       .saves_input = true},
      // Reads x twice, for statistics and for scaling. Backward reads x and dy for the two sums, both again
      // for dx, and writes dx.
      {.name = "batch_norm",
       .input = kImage,
       .parameters = [](const Layer& l) { return weight_and_bias(true, l.input[0]); },
       .buffers = running_statistics,
       .flop = 4,
       .forward = {0, 3},
       .backward = {0, 5},
       .saves_input = true},
      element_wise("relu", false),
      {.name = "max_pool",
       .attributes = {Attribute::count("kernel"), Attribute::count_like("stride", "kernel")},
       .input = kImage,
       .output = [](const Layer& l) { return windows(l, l.input[0], 0); },
       .forward = {1, 1},
       .backward = {1, 1},
       .saves_input = true,
       .adjust = add_indices},
      // For one output element PyTorch takes a mean, whose backward needs nothing but the shape.
      {.name = "adaptive_avg_pool",
       .attributes = {Attribute::count_or("out", 1, 1)},
       .input = kImage,
       .output = [](const Layer& l) -> Shape {
         return {l.input[0], size(l, "out"), size(l, "out")};
       },
       .forward = {1, 1},
       .backward = {1, 1},
       .adjust = [](const Layer& l, LayerCost& cost) { cost.saves_input = size(l, "out") > 1; }},
      {.name = "flatten", .output = [](const Layer& l) { return Shape{numel(l.input)}; }, .is_view = true},
  };
}

}  // namespace stepcast
