#include "models/layer.hpp"

#include <algorithm>
#include <cassert>

#include "core/error.hpp"

namespace stepcast {
namespace {

constexpr double kInt64 = 8.0;  // bytes

double in(const Layer& layer) { return static_cast<double>(numel(layer.input)); }
double out(const Layer& layer) { return static_cast<double>(numel(layer.output)); }
double number(const Layer& layer, const char* key) { return static_cast<double>(layer.sizes.at(key)); }

std::string shape_text(const Shape& shape) {
  std::string text;
  for (const std::int64_t extent : shape) text += (text.empty() ? "" : "x") + std::to_string(extent);
  return text.empty() ? "nothing" : text;
}

/// Positions of the kernel's window over an image of channels x height x width, zero outside.
Shape windows(const Layer& layer, std::int64_t channels, std::int64_t padding) {
  Shape result{channels};
  for (const std::int64_t extent : {layer.input[1], layer.input[2]}) {
    const std::int64_t room = extent + 2 * padding - layer.sizes.at("kernel");
    if (room < 0)
      throw InputError("kernel " + std::to_string(layer.sizes.at("kernel")) + " is larger than the input " +
                       shape_text(layer.input) + " with padding " + std::to_string(padding));
    result.push_back(room / layer.sizes.at("stride") + 1);
  }
  return result;
}

std::vector<LayerTensor> weight_and_bias(const Layer& layer, Shape weight) {
  std::vector<LayerTensor> result{{"weight", std::move(weight)}};
  if (layer.sizes.at("bias") != 0) result.push_back({"bias", {layer.sizes.at("out")}});
  return result;
}

/// One scale and one shift for each of `count` features.
std::vector<LayerTensor> scale_and_shift(std::int64_t count) {
  return {{"weight", {count}}, {"bias", {count}}};
}

Shape sum_of_branches(const Layer& layer) {
  const Shape& body = layer.body.empty() ? layer.input : layer.body.back().output;
  const Shape& shortcut = layer.shortcut.empty() ? layer.input : layer.shortcut.back().output;
  if (body != shortcut)
    throw InputError("body gives " + shape_text(body) + " and shortcut " + shape_text(shortcut) +
                     "; they cannot be added");
  return body;
}

Shape declared_output(const Layer& layer) {
  if (layer.sizes.at("parameter") % 4 != 0)
    throw InputError("parameter must be a multiple of 4 B, the size of a float32");
  return layer.input;
}

void expect_percent(const Layer& layer, const std::string& key) {
  if (layer.sizes.at(key) >= 100)
    throw InputError(key + " is a percentage below 100, found " + std::to_string(layer.sizes.at(key)));
}

// --- transformers; s, h and a are sequence, hidden and heads ---

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

/// One of several modules that make up a layer.
struct LayerPart {
  std::string name;
  std::int64_t count;  ///< rows of a table, outputs of a projection
};

/// Tables in the order in which they are looked up, and so in the order of the rows: word, type, position.
std::vector<LayerPart> tables(const Layer& layer) {
  std::vector<LayerPart> result{{layer.texts.at("word"), layer.sizes.at("vocabulary")}};
  if (layer.sizes.at("types") > 0) result.push_back({layer.texts.at("type"), layer.sizes.at("types")});
  result.push_back({layer.texts.at("position"), layer.sizes.at("positions")});
  return result;
}

Shape embedding_output(const Layer& layer) {
  if (layer.input[0] > layer.sizes.at("positions"))
    throw InputError("sequence " + std::to_string(layer.input[0]) + " is longer than positions " +
                     std::to_string(layer.sizes.at("positions")));
  return {layer.input[0], layer.sizes.at("out")};
}

/// Registered as word, position, type.
std::vector<LayerTensor> embedding_parameters(const Layer& layer) {
  std::vector<LayerTensor> result;
  for (const LayerPart& table : tables(layer))
    result.push_back({table.name + ".weight", {table.count, layer.sizes.at("out")}});
  std::swap(result[1], result.back());
  return result;
}

/// A table is read once per element and written out; each table after the first is one addition. Backward
/// reads dy and adds it to rows of the table's gradient. Leaves out that the gradient of a whole table is
/// zeroed and added, which is traffic of parameters, and does not grow with the batch.
void add_embedding(const Layer& layer, LayerCost& cost) {
  const auto count = static_cast<double>(tables(layer).size());
  const Bytes indices(kInt64 * in(layer));
  cost.forward_traffic = float32_bytes((2.0 * count + 3.0 * (count - 1.0)) * out(layer)) + indices;
  cost.backward_traffic = float32_bytes(3.0 * count * out(layer)) + indices;
  cost.kernels = static_cast<int>(2.0 * count - 1.0);
}

std::vector<LayerRow> embedding_rows(const Layer& layer) {
  std::vector<LayerRow> rows;
  for (const LayerPart& table : tables(layer))
    rows.push_back({full_name(layer, table.name), "Embedding", layer.output,
                    table.count * layer.sizes.at("out"), Flop(0)});
  return rows;
}

Shape attention_output(const Layer& layer) {
  expect_percent(layer, "dropout");
  if (layer.input[1] % layer.sizes.at("heads") != 0)
    throw InputError("heads " + std::to_string(layer.sizes.at("heads")) + " do not divide the width " +
                     std::to_string(layer.input[1]));
  return layer.input;
}

std::vector<LayerPart> projections(const Layer& layer) {
  const std::int64_t width = layer.input[1];
  if (layer.sizes.at("fused") != 0) return {{"c_attn", 3 * width}};
  return {{"query", width}, {"key", width}, {"value", width}};
}

std::vector<LayerTensor> attention_parameters(const Layer& layer) {
  std::vector<LayerTensor> result;
  for (const LayerPart& part : projections(layer)) {
    result.push_back({part.name + ".weight", {part.count, layer.input[1]}});
    result.push_back({part.name + ".bias", {part.count}});
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
void add_attention(const Layer& layer, LayerCost& cost) {
  const auto s = static_cast<double>(layer.input[0]);
  const auto h = static_cast<double>(layer.input[1]);
  const double p = number(layer, "heads") * s * s;
  const DropoutCost drop = dropout_cost(layer.sizes.at("dropout"));
  const bool causal = layer.sizes.at("causal") != 0;
  const auto products = static_cast<int>(projections(layer).size());
  const double copied = 6.0 + 2.0;
  const double vectors = (3.0 + products) + 2.0 + 2.0 + copied;
  const double softmax = 4.0 + (causal ? 2.0 : 0.0);
  const double matrices = 1.0 + softmax + 1.0;
  cost.forward = Flop(6.0 * s * h * h + 4.0 * s * s * h);
  cost.forward_traffic = float32_bytes(vectors * s * h + (matrices + drop.forward) * p);
  cost.backward_traffic = float32_bytes(2.0 * vectors * s * h + (2.0 * matrices + drop.backward) * p);
  cost.saved_besides = float32_bytes(3.0 * s * h + (1.0 + 2.0 * drop.kept) * p);
  cost.kernels = products + 3 + 2 + 2 + 1 + (causal ? 1 : 0) + (drop.kept > 0.0 ? 1 : 0);
  cost.forward_aside = float32_bytes(copied * s * h + (softmax + drop.forward) * p);
  cost.backward_aside = float32_bytes(2.0 * copied * s * h + (2.0 * softmax + drop.backward) * p);
}

/// One row per projection; the products of the attention itself are no module.
std::vector<LayerRow> attention_rows(const Layer& layer) {
  std::vector<LayerRow> rows;
  for (const LayerPart& part : projections(layer))
    rows.push_back({full_name(layer, part.name), "Linear", Shape{layer.input[0], part.count},
                    (layer.input[1] + 1) * part.count,
                    Flop(2.0 * in(layer) * static_cast<double>(part.count))});
  return rows;
}

Shape tied_output(const Layer& layer) {
  if (layer.input[1] != layer.sizes.at("columns"))
    throw InputError("'" + layer.texts.at("to") + "' has " + std::to_string(layer.sizes.at("columns")) +
                     " columns, the input is " + shape_text(layer.input));
  return {layer.input[0], layer.sizes.at("rows")};
}

// --- the table ---

const InputForm kImage{3, 3, "channels x height x width"};
const InputForm kSequence{2, 2, "sequence x features"};

/// A product of matrices: forward reads x and writes y; backward reads dy twice (for dx and for dw) and x, and
/// writes dx.
constexpr PerElement kMatrixForward{1, 1}, kMatrixBackward{2, 2};

/// A function of each element alone: backward reads dy and what was kept, and writes dx.
LayerKind element_wise(const std::string& name, const std::string& torch_class, bool keeps_input) {
  return {.name = name,
          .torch_class = torch_class,
          .flop = 1,
          .forward = {0, 2},
          .backward = {0, 3},
          .saves_input = keeps_input,
          .saves_output = !keeps_input};
}

std::vector<LayerKind> image_kinds() {
  return {
      {.name = "conv",
       .torch_class = "Conv2d",
       .attributes = {{"out", Unit::kCount, {}, 1},
                      {"kernel", Unit::kCount, {}, 1},
                      {"stride", Unit::kCount, 1, 1},
                      {"padding", Unit::kCount, 0, 0},
                      {"bias", Unit::kFlag, 1, 0}},
       .input = kImage,
       .output = [](const Layer& l) { return windows(l, l.sizes.at("out"), l.sizes.at("padding")); },
       .parameters =
           [](const Layer& l) {
             const std::int64_t kernel = l.sizes.at("kernel");
             return weight_and_bias(l, {l.sizes.at("out"), l.input[0], kernel, kernel});
           },
       .multiply_adds =
           [](const Layer& l) {
             return number(l, "kernel") * number(l, "kernel") * static_cast<double>(l.input[0]) * out(l);
           },
       .forward = kMatrixForward,
       .backward = kMatrixBackward,
       .saves_input = true},
      // Reads x twice, for statistics and for scaling. Backward reads x and dy for the two sums, both again for
      // dx, and writes dx.
      {.name = "batch_norm",
       .torch_class = "BatchNorm2d",
       .input = kImage,
       .parameters = [](const Layer& l) { return scale_and_shift(l.input[0]); },
       .buffers =
           [](const Layer& l) {
             return std::vector<LayerTensor>{{"running_mean", {l.input[0]}},
                                             {"running_var", {l.input[0]}},
                                             {"num_batches_tracked", {}, true}};
           },
       .flop = 4,
       .forward = {0, 3},
       .backward = {0, 5},
       .saves_input = true},
      element_wise("relu", "ReLU", false),
      {.name = "max_pool",
       .torch_class = "MaxPool2d",
       .attributes = {{"kernel", Unit::kCount, {}, 1}, {"stride", Unit::kCount, {}, 1, "kernel"}},
       .input = kImage,
       .output = [](const Layer& l) { return windows(l, l.input[0], 0); },
       .forward = {1, 1},
       .backward = {1, 1},
       .saves_input = true,
       .adjust =
           [](const Layer& l, LayerCost& cost) {
             cost.saved_besides = Bytes(kInt64 * out(l));  // where each maximum was
             cost.forward_traffic += cost.saved_besides;
             cost.backward_traffic += cost.saved_besides;
           }},
      // To one element PyTorch takes a mean, whose backward needs nothing but the shape.
      {.name = "adaptive_avg_pool",
       .torch_class = "AdaptiveAvgPool2d",
       .attributes = {{"out", Unit::kCount, 1, 1}},
       .input = kImage,
       .output =
           [](const Layer& l) {
             return Shape{l.input[0], l.sizes.at("out"), l.sizes.at("out")};
           },
       .forward = {1, 1},
       .backward = {1, 1},
       .adjust = [](const Layer& l, LayerCost& cost) { cost.saves_input = l.sizes.at("out") > 1; }},
      {.name = "flatten", .output = [](const Layer& l) { return Shape{numel(l.input)}; }, .is_view = true},
      {.name = "linear",
       .torch_class = "Linear",
       .attributes = {{"out", Unit::kCount, {}, 1}, {"bias", Unit::kFlag, 1, 0}},
       .input = {1, 2, "a vector or a sequence of vectors", "; put a flatten before it"},
       .output =
           [](const Layer& l) {
             Shape output = l.input;
             output.back() = l.sizes.at("out");
             return output;
           },
       .parameters =
           [](const Layer& l) {
             return weight_and_bias(l, {l.sizes.at("out"), l.input.back()});
           },
       .multiply_adds = [](const Layer& l) { return in(l)*number(l, "out"); },
       .forward = kMatrixForward,
       .backward = kMatrixBackward,
       .saves_input = true,
       .ready_order = ReadyOrder::kReversed},
      // Only the addition; body and shortcut are layers of their own. Backward hands the gradient to both
      // unchanged and adds what they return.
      {.name = "residual", .output = sum_of_branches, .forward = {0, 3}, .backward = {3, 0}},
      {.name = "fixed",
       .attributes = {{"forward", Unit::kNanoseconds, {}, 0},
                      {"backward", Unit::kNanoseconds, {}, 0},
                      {"parameter", Unit::kBytes, {}, 4},
                      {"output", Unit::kBytes, 0, 0}},
       .output = declared_output,
       .parameters =
           [](const Layer& l) {
             return std::vector<LayerTensor>{{"weight", {l.sizes.at("parameter") / 4}}};
           },
       .is_view = true},
  };
}

std::vector<LayerKind> transformer_kinds() {
  return {
      {.name = "embedding",
       .torch_class = "Embedding",
       .attributes = {{"vocabulary", Unit::kCount, {}, 1},
                      {"positions", Unit::kCount, {}, 1},
                      {"types", Unit::kCount, 0, 0},
                      {"out", Unit::kCount, {}, 1},
                      {"word", Unit::kName, {}, 0, "", "word_embeddings"},
                      {"position", Unit::kName, {}, 0, "", "position_embeddings"},
                      {"type", Unit::kName, {}, 0, "", "token_type_embeddings"}},
       .input = {1, 1, "a sequence of tokens"},
       .output = embedding_output,
       .parameters = embedding_parameters,
       .saves_input = true,
       .adjust = add_embedding,
       .ready_order = ReadyOrder::kFirstLast,
       .rows = embedding_rows,
       .needs_no_name = true},
      // A position's features stay in the cache between statistics and scaling, so x is read once. Keeps x, and
      // mean and deviation of every position.
      {.name = "layer_norm",
       .torch_class = "LayerNorm",
       .input = kSequence,
       .parameters = [](const Layer& l) { return scale_and_shift(l.input.back()); },
       .flop = 8,
       .forward = {0, 2},
       .backward = {0, 3},
       .saves_input = true,
       .adjust =
           [](const Layer& l, LayerCost& cost) {
             cost.saved_besides = float32_bytes(2.0 * static_cast<double>(l.input[0]));
           }},
      element_wise("gelu", "GELU", true),
      element_wise("tanh", "Tanh", false),
      {.name = "dropout",
       .torch_class = "Dropout",
       .attributes = {{"percent", Unit::kCount, {}, 0}},
       .output =
           [](const Layer& l) {
             expect_percent(l, "percent");
             return l.input;
           },
       .adjust =
           [](const Layer& l, LayerCost& cost) {
             const DropoutCost drop = dropout_cost(l.sizes.at("percent"));
             cost.is_view = l.sizes.at("percent") == 0;
             cost.forward_traffic = float32_bytes(drop.forward * out(l));
             cost.backward_traffic = float32_bytes(drop.backward * out(l));
             cost.saved_besides = float32_bytes(drop.kept * out(l));
           }},
      {.name = "self_attention",
       .torch_class = "Linear",
       .attributes = {{"heads", Unit::kCount, {}, 1},
                      {"causal", Unit::kFlag, 0, 0},
                      {"fused", Unit::kFlag, 0, 0},
                      {"dropout", Unit::kCount, 0, 0}},
       .input = kSequence,
       .output = attention_output,
       .parameters = attention_parameters,
       .saves_input = true,
       .adjust = add_attention,
       .ready_order = ReadyOrder::kReversed,
       .rows = attention_rows},
      // BERT's pooling. Forward is a view; backward writes a gradient of zeros around that of the first position.
      {.name = "first_token",
       .input = kSequence,
       .output = [](const Layer& l) { return Shape{l.input[1]}; },
       .backward = {1, 2},
       .is_view = true},
      // A language model's head that shares the embedding's weight W [vocabulary, hidden]: y = x W^T, no bias.
      // The weight stays the embedding's; the reader looks it up and writes its rows and columns into the sizes.
      {.name = "tied_linear",
       .torch_class = "Linear",
       .attributes = {{"to", Unit::kName, {}, 0}},
       .input = kSequence,
       .output = tied_output,
       .multiply_adds = [](const Layer& l) { return in(l)*number(l, "rows"); },
       .forward = kMatrixForward,
       .backward = kMatrixBackward,
       .saves_input = true},
  };
}

}  // namespace

std::string to_text(Unit unit) {
  const std::vector<std::string> words{"a whole number", "true or false", "a size such as 25MiB",
                                       "a time such as 2ms", "a name"};
  return words.at(static_cast<std::size_t>(unit));
}

const std::vector<LayerKind>& layer_kinds() {
  static const std::vector<LayerKind> kKinds = [] {
    std::vector<LayerKind> kinds = image_kinds();
    for (LayerKind& kind : transformer_kinds()) kinds.push_back(std::move(kind));
    return kinds;
  }();
  return kKinds;
}

std::vector<std::string> layer_kind_names() {
  std::vector<std::string> names;
  for (const LayerKind& kind : layer_kinds()) names.push_back(kind.name);
  return names;
}

const LayerKind& layer_kind(const std::string& name) {
  const auto& kinds = layer_kinds();
  const auto found = std::ranges::find(kinds, name, &LayerKind::name);
  assert(found != kinds.end());
  return *found;
}

Shape output_of(const Layer& layer) {
  const LayerKind& kind = layer_kind(layer.kind);
  if (layer.input.size() < kind.input.least || layer.input.size() > kind.input.most)
    throw InputError(layer.kind + " needs " + kind.input.words + ", its input is " + shape_text(layer.input) +
                     kind.input.remedy);
  return kind.output ? kind.output(layer) : layer.input;
}

LayerCost cost_of(const Layer& layer) {
  const LayerKind& kind = layer_kind(layer.kind);
  const auto traffic = [&](PerElement per) {
    return float32_bytes(per.in * in(layer) + per.out * out(layer));
  };
  LayerCost cost{.forward = Flop(kind.multiply_adds != nullptr ? 2.0 * kind.multiply_adds(layer)
                                                               : kind.flop * out(layer)),
                 .forward_traffic = traffic(kind.forward),
                 .backward_traffic = traffic(kind.backward),
                 .is_view = kind.is_view,
                 .saves_input = kind.saves_input,
                 .saves_output = kind.saves_output};
  if (kind.adjust) kind.adjust(layer, cost);
  return cost;
}

std::string full_name(const Layer& layer, const std::string& suffix) {
  return layer.name.empty() ? suffix : layer.name + "." + suffix;
}

std::int64_t numel(const Shape& shape) {
  std::int64_t product = 1;
  for (const std::int64_t extent : shape) product *= extent;
  return product;
}

}  // namespace stepcast
