#include "models/layer_kinds.hpp"

/// Layers of transformers, and of multi-token prediction (DeepSeek-V3, 2024); s, h and a are sequence, hidden
/// and heads.
namespace stepcast {
namespace {

/// The input, whose positions have rows in the table.
const Shape& positioned(const Layer& layer) {
  const std::int64_t positions = size(layer, "positions");
  if (positions > 0 && layer.input[0] > positions)
    throw InputError("sequence {} is longer than positions {}", layer.input[0], positions);
  return layer.input;
}

Shape embedding_output(const Layer& layer) { return {positioned(layer)[0], size(layer, "out")}; }

/// A table each for words, positions and types, unless it has no rows.
std::vector<LayerTensor> embedding_parameters(const Layer& layer) {
  std::vector<LayerTensor> result;
  for (const auto& [name, rows] :
       {std::pair("word", "vocabulary"), {"position", "positions"}, {"type", "types"}})
    if (flag(layer, rows))
      result.push_back({layer.texts.at(name) + ".weight", {size(layer, rows), size(layer, "out")}});
  return result;
}

/// A table is read once per element and written out; each table after the first is one addition. Backward
/// reads dy and adds it to rows of the table's gradient. Left out: zeroing and adding the gradient of a whole
/// table, which is traffic of parameters and does not grow with the batch.
void add_embedding(const Layer& layer, LayerCost& cost) {
  const auto count = static_cast<double>(embedding_parameters(layer).size());
  const Bytes indices(kInt64 * in(layer));
  Kernel& kernel = cost.kernels.front();
  kernel = moves((2.0 * count + 3.0 * (count - 1.0)) * out(layer), 3.0 * count * out(layer),
                 static_cast<int>(2.0 * count - 1.0));
  kernel.forward += indices;
  kernel.backward += indices;
  kernel.role = KernelRole::kPromoted;
}

Shape tied_output(const Layer& layer) {
  if (layer.input[1] != size(layer, "columns"))
    throw InputError("'" + layer.texts.at("to") + "' has " + std::to_string(size(layer, "columns")) +
                     " columns, the input is " + shape_text(layer.input));
  return {layer.input[0], size(layer, "rows")};
}

Gemm tied_gemm(const Layer& layer) {
  return {static_cast<double>(layer.input[0]), number(layer, "rows"), number(layer, "columns")};
}

std::vector<LayerTensor> layer_norm_parameters(const Layer& layer) {
  if (!flag(layer, "weight")) return {};
  return weight_and_bias(flag(layer, "bias"), layer.input.back());
}

void add_layer_norm(const Layer& layer, LayerCost& cost) {
  keep_in_float32(2.0 * static_cast<double>(layer.input[0]), cost.kernels.front());
  cost.kernels.front().role = KernelRole::kNorm;
}

Shape dropout_output(const Layer& layer) {
  expect_percent(layer, "percent");
  return layer.input;
}

void drop_out(const Layer& layer, LayerCost& cost) {
  cost.is_view = size(layer, "percent") == 0;
  cost.kernels.clear();
  add_dropout(size(layer, "percent"), out(layer), cost.kernels);
}

/// One kernel unless `eager`. Saves x, and one number of every position.
void add_rms_norm(const Layer& layer, LayerCost& cost) {
  keep_in_float32(static_cast<double>(layer.input[0]), cost.kernels.front());
  cost.kernels.front().role = KernelRole::kNorm;
  if (!flag(layer, "eager")) return;
  cost.kernels.front().forward = cost.kernels.front().backward = Bytes(0);
  cost.kernels.front().launches = 0;
  add_eager(kEagerRmsNorm, out(layer), layer.frozen, cost);
}

/// One kernel, or with `eager` the formula with tanh by single kernels: eight of 18 accesses, eleven of 28 in
/// the backward, which reads three of their outputs (`NewGELUActivation` in transformers/activations.py).
void add_gelu(const Layer& layer, LayerCost& cost) {
  if (!flag(layer, "eager")) return;
  Kernel& kernel = cost.kernels.front();
  kernel = moves(18.0 * out(layer), 28.0 * out(layer), 8, 11, Moved::kCompute, KernelRole::kPromoted);
  keep(3.0 * out(layer), kernel);
}

/// Input of a module of multi-token prediction: norms of x and of the next tokens' embeddings, one beside the
/// other. The embedding's table is looked up once more. Forward: both norms, the rows, and the joined array;
/// the backward as three times an output each.
std::vector<LayerTensor> next_parameters(const Layer& layer) {
  const std::int64_t width = size(layer, "out") / 2;
  return {{"enorm.weight", {width}}, {"hnorm.weight", {width}}};
}

Shape next_output(const Layer& layer) { return {layer.input[0], size(layer, "out")}; }

void add_next_tokens(const Layer& layer, LayerCost& cost) {
  const double e = out(layer), s = static_cast<double>(layer.input[0]);
  cost.kernels.front() = moves(2.5 * e, 4.0 * e, 4);
  cost.kernels.front().flop = Flop(4.0 * e);
  keep(e / 2.0, cost.kernels.front());  // rows of the table; x is the input
  keep_in_float32(2.0 * s, cost.kernels.front());
}

Shape own_head_output(const Layer& layer) {
  if (layer.input[1] != size(layer, "columns"))
    throw InputError("columns {} differ from the input, {}", size(layer, "columns"), shape_text(layer.input));
  return {layer.input[0] / (flag(layer, "sequence") ? size(layer, "tensor") : 1), layer.input[1]};
}

/// The head's GEMM and the loss once more for each module of multi-token prediction, with the head's weight W
/// [rows, columns]: 6 accesses of the loss in fp32, as the model's own. Saved: outputs, or their gradient in
/// their place, and unless `fused` their fp32 copy. What is put out is the input. Left out: collectives of a
/// loss over shared classes.
void add_own_head(const Layer& layer, LayerCost& cost) {
  constexpr double kAccesses = 3.0;  // each way
  const auto s = static_cast<double>(layer.input[0]);
  const double times = number(layer, "times"), outputs = times * s * number(layer, "rows");
  const double kept = outputs / number(layer, "chunks");
  cost.is_view = false;
  cost.kernels = {multiplies({s, number(layer, "rows"), number(layer, "columns"), 0.0, times}),
                  moves(kAccesses * outputs, kAccesses * outputs, 2, Moved::kFloat32)};
  keep(kept, cost.kernels.front());
  if (!flag(layer, "fused")) keep_in_float32(kept, cost.kernels.front());
}

}  // namespace

std::vector<LayerKind> transformer_kinds() {
  return {
      {"embedding", embedding_output, embedding_parameters, add_embedding},
      {.name = "position_embedding",
       .output = positioned,
       .parameters = [](const Layer& l) { return weight_and_bias(false, size(l, "positions"), l.input[1]); }},
      {.name = "first_token", .output = [](const Layer& l) { return Shape{l.input[1]}; }},
      {.name = "tied_linear", .output = tied_output, .gemm = tied_gemm},
      {.name = "layer_norm", .parameters = layer_norm_parameters, .adjust = add_layer_norm},
      {.name = "rms_norm",
       .parameters = [](const Layer& l) { return weight_and_bias(false, l.input.back()); },
       .adjust = add_rms_norm},
      {.name = "gelu", .adjust = add_gelu},
      {.name = "dropout", .output = dropout_output, .adjust = drop_out},
      {kNextTokens, next_output, next_parameters, add_next_tokens},
      {.name = kOwnHead, .output = own_head_output, .adjust = add_own_head}};
}

}  // namespace stepcast
