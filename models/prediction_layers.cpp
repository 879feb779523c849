#include "models/layer_kinds.hpp"

/// Layers of multi-token prediction (DeepSeek-V3, 2024), which several modules share with the model.
namespace stepcast {
namespace {

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

std::vector<LayerKind> prediction_kinds() {
  return {{kNextTokens, next_output, next_parameters, add_next_tokens},
          {.name = kOwnHead, .output = own_head_output, .adjust = add_own_head}};
}

}  // namespace stepcast
