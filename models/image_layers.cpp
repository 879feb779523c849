#include "models/layer_kinds.hpp"

namespace stepcast {
namespace {

/// Positions of the kernel's window over an image of channels x height x width, zero outside.
Shape windows(const Layer& layer, std::int64_t channels, std::int64_t padding) {
  Shape result{channels};
  for (const std::int64_t extent : {layer.input[1], layer.input[2]}) {
    const std::int64_t room = extent + 2 * padding - layer.sizes.at("kernel");
    if (room < 0)
      throw InputError("kernel " + std::to_string(layer.sizes.at("kernel")) + " is larger than the input " +
                       shape_text(layer.input) + " with padding " + std::to_string(padding));
    result.push_back(room / layer.sizes.at("stride") + 1);
  }
  return result;
}

const InputForm kImage{3, 3, "channels x height x width"};

}  // namespace

std::vector<LayerKind> image_kinds() {
  return {
      {.name = "conv",
       .torch_class = "Conv2d",
       .attributes = {{"out", Unit::kCount, {}, 1},
                      {"kernel", Unit::kCount, {}, 1},
                      {"stride", Unit::kCount, 1, 1},
                      {"padding", Unit::kCount, 0, 0},
                      {"bias", Unit::kFlag, 1, 0}},
       .input = kImage,
       .output = [](const Layer& l) { return windows(l, l.sizes.at("out"), l.sizes.at("padding")); },
       .parameters =
           [](const Layer& l) {
             const std::int64_t kernel = l.sizes.at("kernel");
             return weight_and_bias(l, {l.sizes.at("out"), l.input[0], kernel, kernel});
           },
       .product =
           [](const Layer& l) {
             return Gemm{out(l) / number(l, "out"), number(l, "out"),
                         number(l, "kernel") * number(l, "kernel") * static_cast<double>(l.input[0])};
           },
       .forward = kMatrixForward,
       .backward = kMatrixBackward,
       .saves_input = true},
      // Reads x twice, for statistics and for scaling. Backward reads x and dy for the two sums, both again for
      // dx, and writes dx.
      {.name = "batch_norm",
       .torch_class = "BatchNorm2d",
       .input = kImage,
       .parameters = [](const Layer& l) { return scale_and_shift(l.input[0]); },
       .buffers =
           [](const Layer& l) {
             return std::vector<LayerTensor>{{"running_mean", {l.input[0]}},
                                             {"running_var", {l.input[0]}},
                                             {"num_batches_tracked", {}, true}};
           },
       .flop = 4,
       .forward = {0, 3},
       .backward = {0, 5},
       .saves_input = true},
      element_wise("relu", "ReLU", false),
      {.name = "max_pool",
       .torch_class = "MaxPool2d",
       .attributes = {{"kernel", Unit::kCount, {}, 1}, {"stride", Unit::kCount, {}, 1, "kernel"}},
       .input = kImage,
       .output = [](const Layer& l) { return windows(l, l.input[0], 0); },
       .forward = {1, 1},
       .backward = {1, 1},
       .saves_input = true,
       .adjust =
           [](const Layer& l, LayerCost& cost) {
             cost.saved_besides = Bytes(kInt64 * out(l));  // where each maximum was
             cost.forward_traffic += cost.saved_besides;
             cost.backward_traffic += cost.saved_besides;
           }},
      // To one element PyTorch takes a mean, whose backward needs nothing but the shape.
      {.name = "adaptive_avg_pool",
       .torch_class = "AdaptiveAvgPool2d",
       .attributes = {{"out", Unit::kCount, 1, 1}},
       .input = kImage,
       .output =
           [](const Layer& l) {
             return Shape{l.input[0], l.sizes.at("out"), l.sizes.at("out")};
           },
       .forward = {1, 1},
       .backward = {1, 1},
       .adjust = [](const Layer& l, LayerCost& cost) { cost.saves_input = l.sizes.at("out") > 1; }},
      {.name = "flatten", .output = [](const Layer& l) { return Shape{numel(l.input)}; }, .is_view = true},
  };
}

}  // namespace stepcast
