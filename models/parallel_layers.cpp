#include "core/ranges.hpp"
#include "core/text.hpp"
#include "core/yaml.hpp"
#include "models/layer_kinds.hpp"

/// Layers that tensor-parallel ranks share, and their borders; t ranks, sequence s and h features.
namespace stepcast {
namespace {

/// Gathered and scattered arrays are ordered by rank. If the sequence is not the first dimension of a tensor,
/// one more kernel copies the whole (torch/distributed/_functional_collectives.py: chunks, and their
/// concatenation).
void add_copy(const Layer& layer, double whole, LayerCost& cost) {
  if (!flag(layer, "batch_first")) return;
  cost.kernels.push_back(moves(2.0 * whole, 2.0 * whole));
}

void add_enter(const Layer& layer, LayerCost& cost) {
  cost.is_view = !flag(layer, "sequence");
  cost.kernels.clear();
  add_copy(layer, out(layer), cost);
  cost.regathers = cost.saves_input = flag(layer, "regather");
}

void add_leave(const Layer& layer, LayerCost& cost) {
  const double added = number(layer, "bias") * out(layer);
  cost.is_view = !flag(layer, "sequence") && added == 0.0;
  cost.kernels.front() = moves(2.0 * added, added, added > 0.0 ? 1 : 0);
  cost.kernels.front().flop = Flop(added);
  add_copy(layer, in(layer), cost);
  for (Kernel& kernel : cost.kernels) kernel.role = KernelRole::kLeave;
}

Shape enter_output(const Layer& layer) {
  return {flag(layer, "sequence") ? size(layer, "ranks") * layer.input[0] : layer.input[0], layer.input[1]};
}

Shape leave_output(const Layer& layer) {
  if (!flag(layer, "sequence")) return layer.input;
  expect_divisible("sequence", layer.input[0], size(layer, "ranks"));
  return {layer.input[0] / size(layer, "ranks"), layer.input[1]};
}

std::vector<LayerTensor> leave_parameters(const Layer& layer) {
  if (!flag(layer, "bias")) return {};
  return {{"bias", {layer.input[1]}}};
}

}  // namespace

Layer border_of(const char* kind, const ModelParallel& parallel, bool regathers, const Shape& input,
                bool bias) {
  Layer border{.kind = kind,
               .sizes = {{"ranks", parallel.tensor},
                         {"sequence", parallel.sequence_parallel ? 1 : 0},
                         {"regather", regathers ? 1 : 0},
                         {"batch_first", parallel.batch_first ? 1 : 0},
                         {"bias", bias ? 1 : 0}},
               .input = input};
  border.output = output_of(border);
  return border;
}

int shared_dimension(const Layer& layer, const LayerTensor& tensor) {
  const auto by = layer.texts.find(kShared);
  if (by == layer.texts.end()) return tensor.divided;
  if (by->second == "heads" && value_or(layer.sizes, "wide_norms", 0) == 0 &&
      contains_any(tensor.suffix, {"norm.", "_a_proj"}))
    return -1;  // norms of heads, and the latents that all heads share
  return by->second == "rows" && tensor.shape.size() == 2 ? 1 : 0;
}

void share_layer(const YamlNode& node, int ranks, bool is_last, Layer& layer) {
  const LayerKind& kind = layer_kind(layer.kind);
  if (layer.kind == "tied_linear" && is_last)
    node.fail("ranks share a tied_linear only with `output: split`");
  if (layer.kind == "self_attention" && flag(layer, "fused"))
    node.fail("ranks cannot share a fused projection of q, k and v");
  if (layer.kind == "embedding" && size(layer, "positions") + size(layer, "types") > 0)
    node.fail("ranks share the words of an embedding; positions and types need layers of their own");
  if (kind.shared_by.empty() && (!parameters_of(layer).empty() || layer.kind == "residual"))
    node.fail(
        "ranks cannot share a {}; they share linear, tied_linear, self_attention, latent_attention, mamba "
        "and embedding",
        layer.kind);
  if (layer.kind == "linear" && is_last) {
    layer.texts[kShared] = "rows";
    if (flag(layer, "bias")) layer.sizes["shared_bias"] = 1;
    layer.sizes["bias"] = 0;
    return;
  }
  if (layer.kind == "self_attention" && !flag(layer, "head_size"))
    layer.sizes["head_size"] = layer.input[1] / size(layer, "heads");
  for (const auto& [key, words] : kind.divided) {
    std::int64_t& count = layer.sizes.at(key);
    node.placed([&, words = words] { expect_divisible(words, count, ranks); });
    count /= ranks;
  }
  if (!kind.shared_by.empty()) layer.texts[kShared] = kind.shared_by;
}

std::vector<LayerKind> parallel_kinds() {
  return {{.name = "tensor_enter", .output = enter_output, .adjust = add_enter},
          {"tensor_leave", leave_output, leave_parameters, add_leave}};
}

}  // namespace stepcast
