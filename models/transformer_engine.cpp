#include "models/transformer_engine.hpp"

#include <algorithm>
#include <set>

#include "core/ranges.hpp"
#include "models/layer_kinds.hpp"

namespace stepcast {
namespace {

/// Visits layers and those of their branches.
struct BufferAccount {
  void visit(const Layer& layer) {
    const bool joins = layer.kind == "self_attention";
    if (layer.kind == "latent_attention") note_rotary(layer, size(layer, "rope"));
    if (joins && flag(layer, "rotary")) note_rotary(layer, layer.output.back() / size(layer, "heads"));
    if (layer.kind == "product") {
      if (!layer.frozen) add(layer.output.back() * 2, layer.input.back());
      return;
    }
    for (const std::vector<Layer>* branch : {&layer.body, &layer.shortcut})
      for (const Layer& inner : *branch) visit(inner);
    if (layer.frozen) return;
    if (layer.kind == "experts") return add_experts(layer);
    std::int64_t rows = 0;
    for (const LayerTensor& tensor : layer_kind(layer.kind).parameters(layer)) {
      if (tensor.shape.size() != 2 || layer.kind.ends_with("embedding")) continue;
      rows += tensor.shape[0];
      if (!joins) add(tensor.shape[0], tensor.shape[1]);
    }
    if (joins) add(rows, layer.input.back());
    if (layer.kind == "tied_linear") add(size(layer, "rows"), size(layer, "columns"));
  }

  [[nodiscard]] EngineBuffers result() const {
    constexpr double kHalf = 2.0;  // bytes
    const double elements =
        sum_of(shapes, [](const auto& shape) { return static_cast<double>(shape.first * shape.second); });
    return {Bytes(kHalf * elements), rotary};
  }

  void add(std::int64_t rows, std::int64_t columns) { shapes.emplace(rows, columns); }

  void add_experts(const Layer& layer) {
    const std::int64_t ways = flag(layer, "gated") ? 2 : 1, hidden = layer.input.back();
    for (const auto& [f, outer] :
         {std::pair{size(layer, "feed_forward") / size(layer, "tensor"), expert_width(layer)},
          {size(layer, "shared"), hidden}})
      if (f > 0) {
        add(ways * f, outer);
        add(outer, f);
      }
    if (flag(layer, "latent")) add(expert_width(layer), hidden), add(hidden, expert_width(layer));
  }

  void note_rotary(const Layer& layer, std::int64_t width) {
    rotary = std::max(rotary, float32_bytes(static_cast<double>(layer.input.front() * width)));
  }

  std::set<std::pair<std::int64_t, std::int64_t>> shapes{};  ///< rows and columns
  Bytes rotary{};
};

}  // namespace

EngineBuffers engine_buffers(const Model& model, const std::vector<int>& segments) {
  BufferAccount account;
  for (const int segment : segments)
    for (const Layer& layer : model.segments[segment].layers) account.visit(layer);
  return account.result();
}

}  // namespace stepcast
