#include "models/layer_kinds.hpp"

/// What stands around layers that ranks share; t ranks, sequence s and h features.
namespace stepcast {
namespace {

bool splits_sequence(const Layer& layer) { return layer.sizes.at("sequence") != 0; }

/// What is gathered comes rank by rank, and is scattered so. Where sequences are not the first dimension of a tensor, one more
/// kernel copies the whole (torch/distributed/_functional_collectives.py: chunks, and their concatenation).
void add_copy(const Layer& layer, double whole, LayerCost& cost) {
  if (layer.sizes.at("batch_first") == 0) return;
  cost.forward_traffic += float32_bytes(2.0 * whole);
  cost.backward_traffic += float32_bytes(2.0 * whole);
  cost.kernels += 1;
}

void expect_divisible(const Layer& layer) {
  if (splits_sequence(layer) && layer.kind == "tensor_leave" && layer.input[0] % layer.sizes.at("ranks") != 0)
    throw InputError("sequence " + std::to_string(layer.input[0]) + " cannot be divided among " +
                     std::to_string(layer.sizes.at("ranks")) + " ranks");
}

}  // namespace

int shared_dimension(const Layer& layer, const LayerTensor& tensor) {
  const auto by = layer.texts.find(kShared);
  if (by == layer.texts.end()) return -1;
  if (by->second == "heads" && tensor.suffix.find("_norm.") != std::string::npos) return -1;
  return by->second == "rows" && tensor.shape.size() == 2 ? 1 : 0;
}

std::vector<LayerKind> parallel_kinds() {
  return {
      // Megatron's copy_to_tensor_model_parallel_region: the identity; with `sequence` t parts of the sequence one after
      // the other, which stay in memory for the layers' backward (torchtitan), or with `again` are gathered once more when it
      // begins (Megatron, which does so beside the first product of the backward; here it is waited for).
      {.name = "tensor_enter",
       .attributes = {{"ranks", Unit::kCount, {}, 2},
                      {"sequence", Unit::kFlag, 0, 0},
                      {"again", Unit::kFlag, 0, 0},
                      {"batch_first", Unit::kFlag, 0, 0}},
       .input = kSequence,
       .output =
           [](const Layer& l) {
             return Shape{splits_sequence(l) ? l.sizes.at("ranks") * l.input[0] : l.input[0], l.input[1]};
           },
       .adjust =
           [](const Layer& l, LayerCost& cost) {
             cost.is_view = !splits_sequence(l);
             cost.kernels = 0;
             add_copy(l, out(l), cost);
             cost.gathers_again = cost.saves_input = l.sizes.at("again") != 0;
           }},
      // Its reduce_from_tensor_model_parallel_region, in place; with `sequence` reduce_scatter_to_sequence_parallel_region.
      // A bias is added once, to the sum.
      {.name = "tensor_leave",
       .attributes = {{"ranks", Unit::kCount, {}, 2},
                      {"sequence", Unit::kFlag, 0, 0},
                      {"again", Unit::kFlag, 0, 0},
                      {"batch_first", Unit::kFlag, 0, 0},
                      {"bias", Unit::kFlag, 0, 0}},
       .input = kSequence,
       .output =
           [](const Layer& l) {
             expect_divisible(l);
             return Shape{splits_sequence(l) ? l.input[0] / l.sizes.at("ranks") : l.input[0], l.input[1]};
           },
       .parameters =
           [](const Layer& l) {
             std::vector<LayerTensor> bias;
             if (l.sizes.at("bias") != 0) bias.push_back({"bias", {l.input[1]}});
             return bias;
           },
       .adjust =
           [](const Layer& l, LayerCost& cost) {
             const double added = number(l, "bias") * out(l);
             cost.is_view = !splits_sequence(l) && added == 0.0;
             cost.forward = Flop(added);
             cost.forward_traffic = float32_bytes(2.0 * added);
             cost.backward_traffic = float32_bytes(added);
             cost.kernels = added > 0.0 ? 1 : 0;
             add_copy(l, in(l), cost);
           }},
  };
}

}  // namespace stepcast
