#include "models/layer_kinds.hpp"

/// Layers of transformers; s, h and a are sequence, hidden and heads.
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
  cost.saves_input = false;
  add_eager(kEagerRmsNorm, out(layer), cost);
}

/// One kernel, or with `eager` the formula with tanh by single kernels: eight of 18 accesses, eleven of 28 in
/// the backward, which reads three of their outputs (`NewGELUActivation` in transformers/activations.py).
void add_gelu(const Layer& layer, LayerCost& cost) {
  if (!flag(layer, "eager")) return;
  Kernel& kernel = cost.kernels.front();
  kernel = moves(18.0 * out(layer), 28.0 * out(layer), 8, 11, Moved::kCompute, KernelRole::kPromoted);
  keep(3.0 * out(layer), kernel);
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
      {.name = "dropout", .output = dropout_output, .adjust = drop_out}};
}

}  // namespace stepcast
