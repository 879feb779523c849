#include "models/layer.hpp"

#include <algorithm>
#include <cassert>
#include <stdexcept>

#include "models/layer_parts.hpp"

namespace stepcast {

using namespace layer_parts;

namespace {

constexpr double kIndex = 8.0;  // bytes of an int64

void expect_image(const Layer& layer) {
  if (layer.input.size() != 3)
    throw std::domain_error(layer.kind + " needs channels x height x width, its input is " +
                            shape_text(layer.input));
}

/// Positions of a window of `kernel` that moves by `stride` over `size` padded elements.
std::int64_t positions(const Layer& layer, std::int64_t size, std::int64_t stride, std::int64_t padding) {
  const std::int64_t room = size + 2 * padding - layer.sizes.at("kernel");
  if (room < 0)
    throw std::domain_error("kernel " + std::to_string(layer.sizes.at("kernel")) +
                            " is larger than the input " + shape_text(layer.input) + " with padding " +
                            std::to_string(padding));
  return room / stride + 1;
}

LayerKind conv() {
  return {
      .name = "conv",
      .torch_class = "Conv2d",
      .attributes = {{"out", Unit::kCount, {}, 1},
                     {"kernel", Unit::kCount, {}, 1},
                     {"stride", Unit::kCount, 1, 1},
                     {"padding", Unit::kCount, 0, 0},
                     {"bias", Unit::kFlag, 1, 0}},
      .output =
          [](const Layer& layer) {
            expect_image(layer);
            const auto size = [&](std::int64_t extent) {
              return positions(layer, extent, layer.sizes.at("stride"), layer.sizes.at("padding"));
            };
            return Shape{layer.sizes.at("out"), size(layer.input[1]), size(layer.input[2])};
          },
      .parameters =
          [](const Layer& layer) {
            const std::int64_t kernel = layer.sizes.at("kernel");
            return weight_and_bias(layer, {layer.sizes.at("out"), layer.input[0], kernel, kernel});
          },
      .buffers = none,
      .cost =
          [](const Layer& layer) {
            const auto kernel = static_cast<double>(layer.sizes.at("kernel"));
            return matrix_cost(layer, kernel * kernel * static_cast<double>(layer.input[0]) * out(layer));
          },
  };
}

LayerKind linear() {
  return {
      .name = "linear",
      .torch_class = "Linear",
      .attributes = {{"out", Unit::kCount, {}, 1}, {"bias", Unit::kFlag, 1, 0}},
      .output =
          [](const Layer& layer) {
            if (layer.input.size() != 1 && layer.input.size() != 2)
              throw std::domain_error("linear needs a vector or a sequence of vectors, its input is " +
                                      shape_text(layer.input) + "; put a flatten before it");
            Shape output = layer.input;
            output.back() = layer.sizes.at("out");
            return output;
          },
      .parameters =
          [](const Layer& layer) {
            return weight_and_bias(layer, {layer.sizes.at("out"), layer.input.back()});
          },
      .buffers = none,
      .cost =
          [](const Layer& layer) {
            return matrix_cost(layer, in(layer) * static_cast<double>(layer.sizes.at("out")));
          },
      .ready_order = ReadyOrder::kReversed,
  };
}

LayerKind batch_norm() {
  return {
      .name = "batch_norm",
      .torch_class = "BatchNorm2d",
      .attributes = {},
      .output =
          [](const Layer& layer) {
            expect_image(layer);
            return layer.input;
          },
      .parameters =
          [](const Layer& layer) {
            return std::vector<LayerTensor>{{"weight", {layer.input[0]}}, {"bias", {layer.input[0]}}};
          },
      .buffers =
          [](const Layer& layer) {
            return std::vector<LayerTensor>{{"running_mean", {layer.input[0]}},
                                            {"running_var", {layer.input[0]}},
                                            {"num_batches_tracked", {}, true}};
          },
      // Backward reads x and dy for the two sums, both again for dx, and writes dx.
      .cost =
          [](const Layer& layer) {
            return LayerCost{.forward = Flop(4.0 * out(layer)),
                             .forward_traffic = elements(3.0 * out(layer)),
                             .backward_traffic = elements(5.0 * out(layer)),
                             .saves_input = true};
          },
  };
}

LayerKind relu() {
  return {.name = "relu",
          .torch_class = "ReLU",
          .attributes = {},
          .output = same,
          .parameters = none,
          .buffers = none,
          .cost = [](const Layer& layer) {
            LayerCost cost = element_cost(layer);
            cost.saves_output = true;
            return cost;
          }};
}

LayerKind max_pool() {
  return {
      .name = "max_pool",
      .torch_class = "MaxPool2d",
      .attributes = {{"kernel", Unit::kCount, {}, 1}, {"stride", Unit::kCount, {}, 1, "kernel"}},
      .output =
          [](const Layer& layer) {
            expect_image(layer);
            const std::int64_t stride = layer.sizes.at("stride");
            return Shape{layer.input[0], positions(layer, layer.input[1], stride, 0),
                         positions(layer, layer.input[2], stride, 0)};
          },
      .parameters = none,
      .buffers = none,
      .cost =
          [](const Layer& layer) {
            const Bytes indices(kIndex * out(layer));
            return LayerCost{.forward_traffic = elements(in(layer) + out(layer)) + indices,
                             .backward_traffic = elements(in(layer) + out(layer)) + indices,
                             .saves_input = true,
                             .saved_besides = indices};
          },
  };
}

LayerKind adaptive_avg_pool() {
  return {
      .name = "adaptive_avg_pool",
      .torch_class = "AdaptiveAvgPool2d",
      .attributes = {{"out", Unit::kCount, 1, 1}},
      .output =
          [](const Layer& layer) {
            expect_image(layer);
            return Shape{layer.input[0], layer.sizes.at("out"), layer.sizes.at("out")};
          },
      .parameters = none,
      .buffers = none,
      // To one element PyTorch takes a mean, whose backward needs nothing but the shape.
      .cost =
          [](const Layer& layer) {
            return LayerCost{.forward_traffic = elements(in(layer) + out(layer)),
                             .backward_traffic = elements(in(layer) + out(layer)),
                             .saves_input = layer.sizes.at("out") > 1};
          },
  };
}

LayerKind flatten() {
  return {.name = "flatten",
          .torch_class = "",
          .attributes = {},
          .output = [](const Layer& layer) { return Shape{numel(layer.input)}; },
          .parameters = none,
          .buffers = none,
          .cost = [](const Layer& /*layer*/) { return LayerCost{.is_view = true}; }};
}

/// Only the addition; body and shortcut are layers of their own. Backward hands the gradient to both
/// unchanged and adds what they return.
LayerKind residual() {
  return {.name = "residual",
          .torch_class = "",
          .attributes = {},
          .output =
              [](const Layer& layer) {
                const Shape& body = layer.body.empty() ? layer.input : layer.body.back().output;
                const Shape& shortcut = layer.shortcut.empty() ? layer.input : layer.shortcut.back().output;
                if (body != shortcut)
                  throw std::domain_error("body gives " + shape_text(body) + " and shortcut " +
                                          shape_text(shortcut) + "; they cannot be added");
                return body;
              },
          .parameters = none,
          .buffers = none,
          .cost =
              [](const Layer& layer) {
                return LayerCost{.forward_traffic = elements(3.0 * out(layer)),
                                 .backward_traffic = elements(3.0 * in(layer))};
              }};
}

LayerKind fixed() {
  return {
      .name = "fixed",
      .torch_class = "",
      .attributes = {{"forward", Unit::kNanoseconds, {}, 0},
                     {"backward", Unit::kNanoseconds, {}, 0},
                     {"parameter", Unit::kBytes, {}, 4},
                     {"output", Unit::kBytes, 0, 0}},
      .output =
          [](const Layer& layer) {
            if (layer.sizes.at("parameter") % 4 != 0)
              throw std::domain_error("parameter must be a multiple of 4 B, the size of a float32");
            return layer.input;
          },
      .parameters =
          [](const Layer& layer) {
            return std::vector<LayerTensor>{{"weight", {layer.sizes.at("parameter") / 4}}};
          },
      .buffers = none,
      .cost = [](const Layer& /*layer*/) { return LayerCost{.is_view = true}; },
  };
}

}  // namespace

const char* to_text(Unit unit) {
  switch (unit) {
    case Unit::kCount:
      return "a whole number";
    case Unit::kFlag:
      return "true or false";
    case Unit::kBytes:
      return "a size such as 25MiB";
    case Unit::kNanoseconds:
      return "a time such as 2ms";
    case Unit::kName:
      return "a name";
  }
  return "";
}

const std::vector<LayerKind>& layer_kinds() {
  static const std::vector<LayerKind> kKinds = [] {
    std::vector<LayerKind> kinds{conv(),    batch_norm(), relu(),     max_pool(), adaptive_avg_pool(),
                                 flatten(), linear(),     residual(), fixed()};
    for (LayerKind& kind : transformer_layer_kinds()) kinds.push_back(std::move(kind));
    return kinds;
  }();
  return kKinds;
}

std::vector<std::string> layer_kind_names() {
  std::vector<std::string> names;
  for (const LayerKind& kind : layer_kinds()) names.push_back(kind.name);
  return names;
}

const LayerKind& layer_kind(const std::string& name) {
  const auto& kinds = layer_kinds();
  const auto found =
      std::find_if(kinds.begin(), kinds.end(), [&](const LayerKind& k) { return k.name == name; });
  assert(found != kinds.end());
  return *found;
}

std::string full_name(const Layer& layer, const std::string& suffix) {
  return layer.name.empty() ? suffix : layer.name + "." + suffix;
}

std::int64_t numel(const Shape& shape) {
  std::int64_t product = 1;
  for (const std::int64_t extent : shape) product *= extent;
  return product;
}

}  // namespace stepcast
