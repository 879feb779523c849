#include <stdexcept>

#include "models/layer_parts.hpp"

/// Layers of transformers. Activations are [sequence, hidden] per sample; s, h and a are sequence, hidden and
/// heads.
namespace stepcast {

using namespace layer_parts;

namespace {

constexpr double kIndexBytes = 8.0;  // bytes of an int64

double sequence(const Layer& layer) { return static_cast<double>(layer.input[0]); }

void expect_sequence(const Layer& layer) {
  if (layer.input.size() != 2)
    throw std::domain_error(layer.kind + " needs sequence x features, its input is " +
                            shape_text(layer.input));
}

void expect_percent(const Layer& layer, const std::string& key) {
  if (layer.sizes.at(key) >= 100)
    throw std::domain_error(key + " is a percentage below 100, found " + std::to_string(layer.sizes.at(key)));
}

/// As PyTorch makes it on a CPU: noise is drawn, divided by 1 - p and multiplied with x; the noise is kept.
/// Reads and writes per element.
struct DropoutCost {
  double forward = 6.0;  // the noise is written, read and written, then x and noise are read and y is written
  double backward = 3.0;
  double kept = 1.0;
};
DropoutCost dropout_cost(std::int64_t percent) {
  return percent > 0 ? DropoutCost{} : DropoutCost{0.0, 0.0, 0.0};
}

struct EmbeddingTable {
  std::string suffix;
  std::int64_t rows;
};

/// In the order in which they are looked up, and so in the order of the rows: word, type, position.
std::vector<EmbeddingTable> tables(const Layer& layer) {
  std::vector<EmbeddingTable> result{{layer.texts.at("word"), layer.sizes.at("vocabulary")}};
  if (layer.sizes.at("types") > 0) result.push_back({layer.texts.at("type"), layer.sizes.at("types")});
  result.push_back({layer.texts.at("position"), layer.sizes.at("positions")});
  return result;
}

Shape embedding_output(const Layer& layer) {
  if (layer.input.size() != 1)
    throw std::domain_error("embedding needs a sequence of tokens, its input is " + shape_text(layer.input));
  if (layer.input[0] > layer.sizes.at("positions"))
    throw std::domain_error("sequence " + std::to_string(layer.input[0]) + " is longer than positions " +
                            std::to_string(layer.sizes.at("positions")));
  return {layer.input[0], layer.sizes.at("out")};
}

/// A table is read once per element and written out; each table after the first is one addition. Backward
/// reads dy and adds it to rows of the table's gradient. Leaves out that the gradient of a whole table is
/// zeroed and added, which is traffic of parameters, and does not grow with the batch.
LayerCost embedding_cost(const Layer& layer) {
  const auto count = static_cast<double>(tables(layer).size());
  return {.forward_traffic =
              elements((2.0 * count + 3.0 * (count - 1.0)) * out(layer)) + Bytes(kIndexBytes * in(layer)),
          .backward_traffic = elements(3.0 * count * out(layer)) + Bytes(kIndexBytes * in(layer)),
          .saves_input = true,
          .kernels = static_cast<int>(2.0 * count - 1.0)};
}

LayerKind embedding() {
  return {
      .name = "embedding",
      .torch_class = "Embedding",
      .attributes = {{"vocabulary", Unit::kCount, {}, 1},
                     {"positions", Unit::kCount, {}, 1},
                     {"types", Unit::kCount, 0, 0},
                     {"out", Unit::kCount, {}, 1},
                     {"word", Unit::kName, {}, 0, "", "word_embeddings"},
                     {"position", Unit::kName, {}, 0, "", "position_embeddings"},
                     {"type", Unit::kName, {}, 0, "", "token_type_embeddings"}},
      .output = embedding_output,
      .parameters =
          [](const Layer& layer) {
            const std::int64_t width = layer.sizes.at("out");
            std::vector<LayerTensor> result{
                {layer.texts.at("word") + ".weight", {layer.sizes.at("vocabulary"), width}},
                {layer.texts.at("position") + ".weight", {layer.sizes.at("positions"), width}}};
            if (const std::int64_t types = layer.sizes.at("types"); types > 0)
              result.push_back({layer.texts.at("type") + ".weight", {types, width}});
            return result;
          },
      .buffers = none,
      .cost = embedding_cost,
      .ready_order = ReadyOrder::kFirstLast,
      .rows =
          [](const Layer& layer) {
            std::vector<LayerRow> rows;
            for (const EmbeddingTable& table : tables(layer))
              rows.push_back({full_name(layer, table.suffix), "Embedding", layer.output,
                              table.rows * layer.sizes.at("out"), Flop(0)});
            return rows;
          },
      .needs_no_name = true,
  };
}

/// Per position over its features. A position's features stay in the cache between statistics and scaling, so
/// x is read once. Keeps x, and mean and deviation of every position.
LayerKind layer_norm() {
  return {
      .name = "layer_norm",
      .torch_class = "LayerNorm",
      .attributes = {},
      .output =
          [](const Layer& layer) {
            expect_sequence(layer);
            return layer.input;
          },
      .parameters =
          [](const Layer& layer) {
            return std::vector<LayerTensor>{{"weight", {layer.input.back()}}, {"bias", {layer.input.back()}}};
          },
      .buffers = none,
      .cost =
          [](const Layer& layer) {
            return LayerCost{.forward = Flop(8.0 * out(layer)),
                             .forward_traffic = elements(2.0 * out(layer)),
                             .backward_traffic = elements(3.0 * out(layer)),
                             .saves_input = true,
                             .saved_besides = elements(2.0 * sequence(layer))};
          }};
}

LayerKind gelu() {
  return {.name = "gelu",
          .torch_class = "GELU",
          .attributes = {},
          .output = same,
          .parameters = none,
          .buffers = none,
          .cost = [](const Layer& layer) {
            LayerCost cost = element_cost(layer);
            cost.saves_input = true;
            return cost;
          }};
}

LayerKind tanh() {
  return {.name = "tanh",
          .torch_class = "Tanh",
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

LayerKind dropout() {
  return {.name = "dropout",
          .torch_class = "Dropout",
          .attributes = {{"percent", Unit::kCount, {}, 0}},
          .output =
              [](const Layer& layer) {
                expect_percent(layer, "percent");
                return layer.input;
              },
          .parameters = none,
          .buffers = none,
          .cost =
              [](const Layer& layer) {
                const DropoutCost cost = dropout_cost(layer.sizes.at("percent"));
                return LayerCost{.forward_traffic = elements(cost.forward * out(layer)),
                                 .backward_traffic = elements(cost.backward * out(layer)),
                                 .is_view = layer.sizes.at("percent") == 0,
                                 .saved_besides = elements(cost.kept * out(layer))};
              }};
}

Shape attention_output(const Layer& layer) {
  expect_sequence(layer);
  expect_percent(layer, "dropout");
  if (layer.input[1] % layer.sizes.at("heads") != 0)
    throw std::domain_error("heads " + std::to_string(layer.sizes.at("heads")) + " do not divide the width " +
                            std::to_string(layer.input[1]));
  return layer.input;
}

bool is_fused(const Layer& layer) { return layer.sizes.at("fused") != 0; }

std::vector<LayerTensor> attention_parameters(const Layer& layer) {
  const std::int64_t width = layer.input[1];
  if (is_fused(layer)) return {{"c_attn.weight", {3 * width, width}}, {"c_attn.bias", {3 * width}}};
  std::vector<LayerTensor> result;
  for (const char* part : {"query", "key", "value"}) {
    result.push_back({std::string(part) + ".weight", {width, width}});
    result.push_back({std::string(part) + ".bias", {width}});
  }
  return result;
}

/// softmax(q k^T / sqrt(h/a)) v per head, without the projection that follows.
///
///     flop = 6 s h^2 + 4 s^2 h                       (three projections; q k^T and p v)
///
/// Traffic in elements, forward; p are the a s^2 probabilities:
///
///     projections      6 s h, or fused 4 s h
///     split by heads   6 s h                         (q, k and v are copied head by head)
///     q k^T            2 s h + p
///     scale, softmax   4 p; the causal mask 2 p; dropout as it says
///     p v, join heads  2 s h + p, 2 s h
///
/// Backward twice that, as each product has two, each element-wise step reads a second tensor, and copies go
/// both ways. Kept: x, q, k, v and p; with dropout also its noise and what is left of p. Softmax's flop are
/// left out. Copies and what happens to p between its products are kernels of their own: three for splitting,
/// one each for scale, softmax, mask, dropout and joining.
LayerCost attention_cost(const Layer& layer) {
  const double s = sequence(layer);
  const auto h = static_cast<double>(layer.input[1]);
  const double p = static_cast<double>(layer.sizes.at("heads")) * s * s;
  const DropoutCost drop = dropout_cost(layer.sizes.at("dropout"));
  const bool causal = layer.sizes.at("causal") != 0;
  const double copied = 6.0 + 2.0;
  const double vectors = (is_fused(layer) ? 4.0 : 6.0) + 2.0 + 2.0 + copied;
  const double softmax = 4.0 + (causal ? 2.0 : 0.0);
  const double matrices = 1.0 + softmax + 1.0;
  const int kernels =
      (is_fused(layer) ? 1 : 3) + 3 + 2 + 2 + 1 + (causal ? 1 : 0) + (drop.kept > 0.0 ? 1 : 0);
  return {.forward = Flop(6.0 * s * h * h + 4.0 * s * s * h),
          .forward_traffic = elements(vectors * s * h + (matrices + drop.forward) * p),
          .backward_traffic = elements(2.0 * vectors * s * h + (2.0 * matrices + drop.backward) * p),
          .saves_input = true,
          .saved_besides = elements(3.0 * s * h + (1.0 + 2.0 * drop.kept) * p),
          .kernels = kernels,
          .forward_aside = elements(copied * s * h + (softmax + drop.forward) * p),
          .backward_aside = elements(2.0 * copied * s * h + (2.0 * softmax + drop.backward) * p)};
}

LayerKind self_attention() {
  return {.name = "self_attention",
          .torch_class = "Linear",
          .attributes = {{"heads", Unit::kCount, {}, 1},
                         {"causal", Unit::kFlag, 0, 0},
                         {"fused", Unit::kFlag, 0, 0},
                         {"dropout", Unit::kCount, 0, 0}},
          .output = attention_output,
          .parameters = attention_parameters,
          .buffers = none,
          .cost = attention_cost,
          .ready_order = ReadyOrder::kReversed,
          // One row per projection; the products of the attention itself are no module.
          .rows = [](const Layer& layer) {
            const std::int64_t width = layer.input[1];
            std::vector<LayerRow> rows;
            const auto add = [&](const char* part, std::int64_t out) {
              rows.push_back({full_name(layer, part), "Linear", Shape{layer.input[0], out}, (width + 1) * out,
                              Flop(2.0 * in(layer) * static_cast<double>(out))});
            };
            if (is_fused(layer)) {
              add("c_attn", 3 * width);
            } else {
              for (const char* part : {"query", "key", "value"}) add(part, width);
            }
            return rows;
          }};
}

/// BERT's pooling. Forward is a view; backward writes a gradient of zeros around that of the first position.
LayerKind first_token() {
  return {.name = "first_token",
          .torch_class = "",
          .attributes = {},
          .output =
              [](const Layer& layer) {
                expect_sequence(layer);
                return Shape{layer.input[1]};
              },
          .parameters = none,
          .buffers = none,
          .cost =
              [](const Layer& layer) {
                return LayerCost{.backward_traffic = elements(in(layer) + 2.0 * out(layer)), .is_view = true};
              }};
}

/// A language model's head that shares the embedding's weight W [vocabulary, hidden]: y = x W^T, no bias. The
/// weight stays the embedding's; the reader looks it up and writes its rows and columns into the sizes.
LayerKind tied_linear() {
  return {.name = "tied_linear",
          .torch_class = "Linear",
          .attributes = {{"to", Unit::kName, {}, 0}},
          .output =
              [](const Layer& layer) {
                expect_sequence(layer);
                if (layer.input[1] != layer.sizes.at("columns"))
                  throw std::domain_error("'" + layer.texts.at("to") + "' has " +
                                          std::to_string(layer.sizes.at("columns")) +
                                          " columns, the input is " + shape_text(layer.input));
                return Shape{layer.input[0], layer.sizes.at("rows")};
              },
          .parameters = none,
          .buffers = none,
          .cost =
              [](const Layer& layer) {
                return matrix_cost(layer, in(layer) * static_cast<double>(layer.sizes.at("rows")));
              }};
}

}  // namespace

std::vector<LayerKind> layer_parts::transformer_layer_kinds() {
  return {embedding(), layer_norm(),     gelu(),        tanh(),
          dropout(),   self_attention(), first_token(), tied_linear()};
}

}  // namespace stepcast
