#include "models/layer_kinds.hpp"

/// Layers of transformers; s, h and a are sequence, hidden and heads.
namespace stepcast {
namespace {

struct EmbeddingTable {
  std::string name;
  std::int64_t rows;
};

/// Tables in the order in which they are looked up: word, type, position.
std::vector<EmbeddingTable> tables(const Layer& layer) {
  std::vector<EmbeddingTable> result{{layer.texts.at("word"), size(layer, "vocabulary")}};
  if (flag(layer, "types")) result.push_back({layer.texts.at("type"), size(layer, "types")});
  if (flag(layer, "positions")) result.push_back({layer.texts.at("position"), size(layer, "positions")});
  return result;
}

void expect_positions(const Layer& layer) {
  const std::int64_t positions = size(layer, "positions");
  if (positions > 0 && layer.input[0] > positions)
    throw InputError("sequence {} is longer than positions {}", layer.input[0], positions);
}

Shape embedding_output(const Layer& layer) {
  expect_positions(layer);
  return {layer.input[0], size(layer, "out")};
}

/// Registered as word, position, type.
std::vector<LayerTensor> embedding_parameters(const Layer& layer) {
  std::vector<LayerTensor> result;
  for (const EmbeddingTable& table : tables(layer))
    result.push_back({table.name + ".weight", {table.rows, size(layer, "out")}});
  if (result.size() > 2) std::swap(result[1], result.back());
  return result;
}

/// A table is read once per element and written out; each table after the first is one addition. Backward
/// reads dy and adds it to rows of the table's gradient. Left out: zeroing and adding the gradient of a whole
/// table, which is traffic of parameters and does not grow with the batch.
void add_embedding(const Layer& layer, LayerCost& cost) {
  const auto count = static_cast<double>(tables(layer).size());
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
LayerKind gelu_kind() {
  LayerKind kind = element_wise("gelu", true);
  kind.attributes = {Attribute::flag("eager")};
  kind.adjust = [](const Layer& layer, LayerCost& cost) {
    if (!flag(layer, "eager")) return;
    Kernel& kernel = cost.kernels.front();
    kernel = moves(18.0 * out(layer), 28.0 * out(layer), 8, 11, Moved::kCompute, KernelRole::kPromoted);
    keep(3.0 * out(layer), kernel);
  };
  return kind;
}

}  // namespace

std::vector<LayerKind> embedding_kinds() {
  return {
      {.name = "embedding",
       .attributes = {Attribute::count("vocabulary"), Attribute::count("positions", 0),
                      Attribute::count_or("types", 0), Attribute::count("out"),
                      Attribute::name("word", "word_embeddings"),
                      Attribute::name("position", "position_embeddings"),
                      Attribute::name("type", "token_type_embeddings")},
       .input = {1, 1, "a sequence of tokens"},
       .output = embedding_output,
       .parameters = embedding_parameters,
       .saves_input = true,
       .adjust = add_embedding,
       .ready_order = ReadyOrder::kFirstLast,
       .needs_no_name = true},
      // Learned positions, added to vectors: y = x + W[0 ... s-1]. An embedding adds its own at once.
      {.name = "position_embedding",
       .attributes = {Attribute::count("positions")},
       .input = kSequence,
       .output =
           [](const Layer& l) {
             expect_positions(l);
             return l.input;
           },
       .parameters = [](const Layer& l) { return weight_and_bias(false, size(l, "positions"), l.input[1]); },
       .forward = {0, 3},
       .backward = {0, 1}},
      // BERT's pooling. Forward is a view; backward writes a gradient of zeros around that of the first
      // position.
      {.name = "first_token",
       .input = kSequence,
       .output = [](const Layer& l) { return Shape{l.input[1]}; },
       .backward = {1, 2},
       .is_view = true},
      // Language model head that shares the embedding's weight W [vocabulary, hidden]: y = x W^T, no bias.
      // The weight stays the embedding's; the reader looks it up and writes its rows and columns into the
      // sizes.
      {.name = "tied_linear",
       .attributes = {{"to", Unit::kName}},
       .input = kSequence,
       .output = tied_output,
       .gemm = [](const Layer& l) -> Gemm {
         return {static_cast<double>(l.input[0]), number(l, "rows"), number(l, "columns")};
       },
       .forward = kGemmForward,
       .backward = kGemmBackward,
       .saves_input = true},
  };
}

std::vector<LayerKind> norm_kinds() {
  return {
      // The features of a position stay in the cache between statistics and scaling, so x is read once. Saves
      // x, and mean and deviation of every position.
      {.name = "layer_norm",
       .attributes = {Attribute::flag("bias", true), Attribute::flag("weight", true)},
       .input = kSequence,
       .parameters =
           [](const Layer& l) {
             return flag(l, "weight") ? weight_and_bias(flag(l, "bias"), l.input.back())
                                      : std::vector<LayerTensor>{};
           },
       .flop = 8,
       .forward = {0, 2},
       .backward = {0, 3},
       .saves_input = true,
       .adjust =
           [](const Layer& l, LayerCost& cost) {
             keep_in_float32(2.0 * static_cast<double>(l.input[0]), cost.kernels.front());
             cost.kernels.front().role = KernelRole::kNorm;
           }},
      {.name = "rms_norm",
       .attributes = {Attribute::flag("eager")},
       .input = kSequence,
       .parameters = [](const Layer& l) { return weight_and_bias(false, l.input.back()); },
       .flop = 4,
       .forward = {0, 2},
       .backward = {0, 3},
       .saves_input = true,
       .adjust = add_rms_norm},
      gelu_kind(),
      element_wise("silu", true),
      element_wise("relu2", true),
      element_wise("tanh", false),
      {.name = "dropout",
       .attributes = {Attribute::count("percent", 0)},
       .output =
           [](const Layer& l) {
             expect_percent(l, "percent");
             return l.input;
           },
       .adjust = drop_out},
  };
}

}  // namespace stepcast
