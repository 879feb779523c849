#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "models/model.hpp"

/// The table of layer kinds: what a layer may say of itself in YAML, and the arithmetic that follows from it.
///
/// | kind                | attributes (integers in `Layer::sizes`)                         | PyTorch class |
/// |---------------------|-----------------------------------------------------------------|-------------------|
/// | `conv`              | `out`, `kernel`, `stride` = 1, `padding` = 0, `bias` = true      | Conv2d | |
/// `batch_norm`        | –                                                               | BatchNorm2d | |
/// `relu`              | –                                                               | ReLU | |
/// `max_pool`          | `kernel`, `stride` = kernel                                      | MaxPool2d | |
/// `adaptive_avg_pool` | `out` = 1                                                        | AdaptiveAvgPool2d
/// | | `flatten`           | –                                                               | a view | |
/// `linear`            | `out`, `bias` = true                                             | Linear | |
/// `residual`          | lists `body`, `shortcut`: y = body(x) + shortcut(x)              | an addition | |
/// `fixed`             | `forward` and `backward` (times, in ns), `parameter` (bytes)     | times declared |
///
/// Square kernels only; images are channels x height x width.
namespace stepcast {

/// What a number in a model file means; settings and attributes of one unit go together.
enum class Unit : std::uint8_t { kCount, kFlag, kBytes, kNanoseconds };
const char* to_text(Unit unit);

struct Attribute {
  std::string key;
  Unit unit = Unit::kCount;
  std::optional<std::int64_t> standard{};  ///< value when it is left out; none: it is due, or `same_as`
  std::int64_t least = 0;
  std::string same_as{};  ///< an earlier attribute whose value it takes when it is left out
};

/// A parameter or a buffer of one layer.
struct LayerTensor {
  std::string suffix;  ///< `weight`; the full name is `<layer>.weight`
  Shape shape{};
  bool is_integer = false;
};

/// What one layer costs per sample, in float32 (4 B per element). Parameters' own bytes are not in the
/// traffic.
struct LayerCost {
  Flop forward{};  ///< 2 per multiply-add; batch norm 4 and ReLU 1 per element; pooling and additions 0
  Bytes forward_traffic{};  ///< activations read and written once each; batch norm reads twice (statistics,
                            ///< then scaling)
  Bytes backward_traffic{};
  bool is_view = false;      ///< the output is the input's memory
  bool saves_input = false;  ///< autograd keeps the input for the backward
  bool saves_output = false;
  Bytes saved_besides{};  ///< kept beside activations: max pooling's int64 indices, 8 B per output element
};

struct LayerKind {
  std::string name;
  std::string torch_class;  ///< `Conv2d`; "" for what is no module in PyTorch and has no row
  std::vector<Attribute> attributes;
  /// Output shape from input shape and sizes. \throws std::domain_error when the input does not fit.
  std::function<Shape(const Layer&)> output;
  std::function<std::vector<LayerTensor>(const Layer&)> parameters;  ///< in registration order
  std::function<std::vector<LayerTensor>(const Layer&)> buffers;     ///< in registration order
  std::function<LayerCost(const Layer&)> cost;
  /// Autograd accumulates the bias's gradient before the weight's (Linear; Conv2d and BatchNorm2d do the
  /// opposite).
  bool last_parameter_ready_first = false;
};

const std::vector<LayerKind>& layer_kinds();
std::vector<std::string> layer_kind_names();

/// \pre `name` is in the table
const LayerKind& layer_kind(const std::string& name);

std::int64_t numel(const Shape& shape);

}  // namespace stepcast
