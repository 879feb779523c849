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

/// Moves the gather before latent attention behind the projections that make latents. The layer's own input
/// stays that of the whole sequence.
void gather_latents(Layer enter, Layer& attention) {
  const std::int64_t queries = size(attention, "q_rank");
  enter.input[1] =
      (queries > 0 ? queries : enter.input[1]) + size(attention, "kv_rank") + size(attention, "rope");
  enter.output[1] = enter.input[1];
  attention.body = {std::move(enter)};
}

/// Divides a shared expert among tensor-parallel ranks.
void divide_shared_expert(const ModelParallel& parallel, bool gathers_again, Layer& experts) {
  const std::int64_t ranks = parallel.tensor;
  expect_divisible(experts.name + ": shared", size(experts, "shared"), ranks);
  experts.sizes.at("shared") /= ranks;
  const std::string prefix = full_name(experts, "shared_experts.");
  Layer enter = border_of("tensor_enter", parallel, gathers_again, experts.input);
  Layer leave = border_of("tensor_leave", parallel, gathers_again, enter.output);
  enter.name = prefix + experts.texts.at(expert_parts(experts).front());
  leave.name = prefix + experts.texts.at("down");
  experts.body = {std::move(enter), std::move(leave)};
}

/// Megatron's vocabulary-parallel cross entropy: of every position the largest output, that of the target,
/// and the sum of the exponentials.
void add_loss_collectives(Model& model) {
  const Bytes each = float32_bytes(static_cast<double>(model.segments.back().output.front()));
  model.collectives.push_back({"loss.maximum", LayerCollectiveKind::kMaximum, -1, false, each});
  for (const char* name : {"loss.target", "loss.sum"})
    model.collectives.push_back({name, LayerCollectiveKind::kAllReduce, -1, false, each});
}

/// While the backward of the head runs, the whole gradient of its input is there, and of a sequence in parts
/// also the own part of its sum.
void add_head_workspace(Model& model) {
  Segment& head = model.segments.back();
  for (const LayerWork& work : head.work)
    work.for_each_gemm([&](const Gemm& gemm) {
      const double whole = gemm.rows * gemm.depth;
      const double part = model.parallel.sequence_parallel ? whole / model.parallel.tensor : 0.0;
      head.saved.workspace.backward = std::max(head.saved.workspace.backward, float32_bytes(whole + part));
    });
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

void add_loss_costs(Model& model) {
  if (model.shares_classes()) add_loss_collectives(model);
  if (model.transformer_engine()) add_head_workspace(model);
}

void place_collectives(const Model& model, std::vector<Layer>& layers) {
  const bool gathers_again = value_or(model.settings, "gather_again", 0) != 0;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    for (std::vector<Layer>* branch : {&layers[i].body, &layers[i].shortcut})
      place_collectives(model, *branch);
    if (layers[i].kind == "experts" && model.parallel.sequence_parallel && flag(layers[i], "shared"))
      divide_shared_expert(model.parallel, gathers_again, layers[i]);
    if (i == 0 || layers[i].kind != "latent_attention" || layers[i - 1].kind != "tensor_enter" ||
        !flag(layers[i - 1], "sequence"))
      continue;
    gather_latents(std::move(layers[i - 1]), layers[i]);
    layers.erase(layers.begin() + static_cast<std::ptrdiff_t>(--i));
  }
}

std::vector<LayerKind> parallel_kinds() {
  return {{.name = "tensor_enter", .output = enter_output, .adjust = add_enter},
          {"tensor_leave", leave_output, leave_parameters, add_leave}};
}

}  // namespace stepcast
