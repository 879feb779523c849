#include <algorithm>

#include "models/layer_kinds.hpp"

/// Layers of transformers; s, h and a are sequence, hidden and heads.
namespace stepcast {
namespace {

/// Tables in the order in which they are looked up, and so in the order of the rows: word, type, position.
std::vector<LayerPart> tables(const Layer& layer) {
  std::vector<LayerPart> result{{layer.texts.at("word"), layer.sizes.at("vocabulary")}};
  if (layer.sizes.at("types") > 0) result.push_back({layer.texts.at("type"), layer.sizes.at("types")});
  if (layer.sizes.at("positions") > 0)
    result.push_back({layer.texts.at("position"), layer.sizes.at("positions")});
  return result;
}

/// 0: there is no table of them.
void expect_positions(const Layer& layer) {
  const std::int64_t positions = layer.sizes.at("positions");
  if (positions > 0 && layer.input[0] > positions)
    throw InputError("sequence " + std::to_string(layer.input[0]) + " is longer than positions " +
                     std::to_string(positions));
}

Shape embedding_output(const Layer& layer) {
  expect_positions(layer);
  return {layer.input[0], layer.sizes.at("out")};
}

/// Registered as word, position, type.
std::vector<LayerTensor> embedding_parameters(const Layer& layer) {
  std::vector<LayerTensor> result;
  for (const LayerPart& table : tables(layer))
    result.push_back({table.name + ".weight", {table.count, layer.sizes.at("out")}});
  if (result.size() > 2) std::swap(result[1], result.back());
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

// --- experts; E experts, K of them active for a token, f wide; shared ones f_s ---

Shape experts_output(const Layer& layer) {
  const std::int64_t experts = layer.sizes.at("experts"), ranks = layer.sizes.at("ranks");
  if (layer.sizes.at("active") > experts)
    throw InputError("active " + std::to_string(layer.sizes.at("active")) +
                     " is more than there are experts, " + std::to_string(experts));
  if (experts % ranks != 0)
    throw InputError("experts " + std::to_string(experts) + " cannot be divided among " +
                     std::to_string(ranks) + " ranks");
  const std::int64_t groups = layer.sizes.at("groups"), chosen = layer.sizes.at("chosen_groups");
  if (experts % groups != 0 || (groups > 1 && experts / groups < 2))
    throw InputError("experts " + std::to_string(experts) + " cannot be divided into " +
                     std::to_string(groups) + " groups of two or more");
  if (chosen > groups || layer.sizes.at("active") > chosen * (experts / groups))
    throw InputError("active " + std::to_string(layer.sizes.at("active")) + " experts cannot be among " +
                     std::to_string(chosen) + " of " + std::to_string(groups) + " groups");
  return layer.input;
}

/// Added to the scores for the choice alone, and moved by no gradient (DeepSeek-V3); no buffers of softmax's.
std::vector<LayerTensor> experts_buffers(const Layer& layer) {
  if (!says(layer, "sigmoid")) return {};
  return {{layer.texts.at("router") + ".e_score_correction_bias", {layer.sizes.at("experts")}}};
}

/// Gate, up and down of one feed-forward layer.
void add_feed_forward(const Layer& layer, const std::string& prefix, std::int64_t width, bool expert,
                      std::vector<LayerTensor>& tensors) {
  for (const char* part : {"gate", "up"})
    tensors.push_back(
        {.suffix = prefix + layer.texts.at(part) + ".weight", .shape = {width, layer.input[1]}});
  tensors.push_back(
      {.suffix = prefix + layer.texts.at("down") + ".weight", .shape = {layer.input[1], width}});
  for (std::size_t i = tensors.size() - 3; i < tensors.size(); ++i) tensors[i].expert = expert;
}

std::vector<LayerTensor> experts_parameters(const Layer& layer) {
  std::vector<LayerTensor> result{
      {layer.texts.at("router") + ".weight", {layer.sizes.at("experts"), layer.input[1]}}};
  const std::int64_t ranks = layer.sizes.at("ranks");
  for (std::int64_t i = 0; i < layer.sizes.at("experts") / ranks; ++i)
    add_feed_forward(layer, "experts." + std::to_string(i) + ".", layer.sizes.at("feed_forward"), ranks > 1,
                     result);
  if (layer.sizes.at("shared") > 0)
    add_feed_forward(layer, "shared_experts.", layer.sizes.at("shared"), false, result);
  return result;
}

/// sum over the K experts e of a token of g_e(x) down_e(silu(gate_e(x)) * up_e(x)), and the shared ones.
///
///     flop = 2 s h E + 6 s h (K f + f_s)
///
/// Traffic in elements, forward: the router s (h + 3 E), with `sigmoid` 4 s E more (the function, and what is added for the
/// choice) and with `groups` 4 s E (the best two of each group, and the others taken out); per token and active expert its copy in and out 4 h, three
/// products 3 (h + f), SiLU and gate 5 f, weighting 3 h. Backward twice that. Kept: x, the router's probabilities, and per
/// token and active expert x, y and four times f. All experts' weights are read, which holds for batches of more tokens
/// than experts.
///
/// With a capacity of C tokens, K is C E/s. Of r ranks each has E/r experts, of tokens of all r as many as it would have of
/// its own alone; where it has several, rows that come rank by rank are sorted by expert and back, 4 h each.
void add_experts(const Layer& layer, LayerCost& cost) {
  const auto s = static_cast<double>(layer.input[0]);
  const auto h = static_cast<double>(layer.input[1]);
  const double experts = number(layer, "experts"), own = experts / number(layer, "ranks");
  const double active = static_cast<double>(expert_rows(layer)) / s;
  const double routed = number(layer, "feed_forward"), shared = number(layer, "shared");
  const double wide = active * routed + shared;
  const double inputs = active + (shared > 0.0 ? 1.0 : 0.0);
  const double sorted = own < experts && own > 1.0 ? 4.0 : 0.0;
  const double copied = s * active * (4.0 + 3.0 + sorted) * h;
  const double routes = (says(layer, "sigmoid") ? 4.0 : 0.0) + (layer.sizes.at("groups") > 1 ? 4.0 : 0.0);
  const double around = s * (h + (3.0 + routes) * experts + inputs * 3.0 * h + wide * (3.0 + 5.0)) + copied;
  cost.forward = Flop(2.0 * s * h * experts + 6.0 * s * h * wide);
  cost.forward_traffic = float32_bytes(around);
  cost.backward_traffic = float32_bytes(2.0 * around);
  cost.forward_memory_bound = float32_bytes(copied);
  cost.backward_memory_bound = float32_bytes(2.0 * copied);
  cost.saved_besides = float32_bytes(s * (experts + active * 2.0 * h + 4.0 * wide));
  cost.kernels = 4 + static_cast<int>(own) * 8 + (shared > 0.0 ? 6 : 0) + (says(layer, "sigmoid") ? 2 : 0) +
                 (layer.sizes.at("groups") > 1 ? 5 : 0);
  cost.products.push_back({.rows = s, .columns = experts, .depth = h, .chooses = true});
  const auto add_feed_forward = [&](double rows, double width, double times) {
    cost.products.push_back({rows, width, h, 0.0, 2.0 * times});
    cost.products.push_back({rows, h, width, 0.0, times});
  };
  add_feed_forward(s * active / own, routed, own);
  if (shared > 0.0) add_feed_forward(s, shared, 1.0);
}

Shape tied_output(const Layer& layer) {
  if (layer.input[1] != layer.sizes.at("columns"))
    throw InputError("'" + layer.texts.at("to") + "' has " + std::to_string(layer.sizes.at("columns")) +
                     " columns, the input is " + shape_text(layer.input));
  return {layer.input[0], layer.sizes.at("rows")};
}

}  // namespace

std::int64_t expert_capacity(const Layer& layer) {
  constexpr std::int64_t kPercent = 100;
  const std::int64_t s = layer.input[0], experts = kPercent * layer.sizes.at("experts");
  const std::int64_t shares = layer.sizes.at("capacity") * s * layer.sizes.at("active");
  return std::min(s, (shares + experts - 1) / experts);
}

std::int64_t expert_rows(const Layer& layer) {
  const std::int64_t capacity = expert_capacity(layer);
  return capacity > 0 ? layer.sizes.at("experts") * capacity : layer.input[0] * layer.sizes.at("active");
}

std::vector<LayerKind> transformer_kinds() {
  return {
      {.name = "embedding",
       .torch_class = "Embedding",
       .attributes = {{"vocabulary", Unit::kCount, {}, 1},
                      {"positions", Unit::kCount, {}, 0},
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
      // Learned positions, added to vectors: y = x + W[0 ... s-1]. An embedding adds its own at once.
      {.name = "position_embedding",
       .torch_class = "Embedding",
       .attributes = {{"positions", Unit::kCount, {}, 1}},
       .input = kSequence,
       .output =
           [](const Layer& l) {
             expect_positions(l);
             return l.input;
           },
       .parameters =
           [](const Layer& l) {
             return std::vector<LayerTensor>{{"weight", {l.sizes.at("positions"), l.input[1]}}};
           },
       .forward = {0, 3},
       .backward = {0, 1}},
      // A position's features stay in the cache between statistics and scaling, so x is read once. Keeps x, and
      // mean and deviation of every position.
      {.name = "layer_norm",
       .torch_class = "LayerNorm",
       .attributes = {{"bias", Unit::kFlag, 1, 0}},
       .input = kSequence,
       .parameters =
           [](const Layer& l) {
             std::vector<LayerTensor> tensors = scale_and_shift(l.input.back());
             tensors.resize(says(l, "bias") ? 2 : 1);
             return tensors;
           },
       .flop = 8,
       .forward = {0, 2},
       .backward = {0, 3},
       .saves_input = true,
       .adjust =
           [](const Layer& l, LayerCost& cost) {
             cost.saved_besides = float32_bytes(2.0 * static_cast<double>(l.input[0]));
           }},
      // As one kernel, unless `eager`. Keeps x, and one number of every position.
      {.name = "rms_norm",
       .torch_class = "RMSNorm",
       .attributes = {{"eager", Unit::kFlag, 0, 0}},
       .input = kSequence,
       .parameters =
           [](const Layer& l) {
             return std::vector<LayerTensor>{{"weight", {l.input.back()}}};
           },
       .flop = 4,
       .forward = {0, 2},
       .backward = {0, 3},
       .saves_input = true,
       .adjust =
           [](const Layer& l, LayerCost& cost) {
             cost.saved_besides = float32_bytes(static_cast<double>(l.input[0]));
             if (!says(l, "eager")) return;
             cost.forward_traffic = cost.backward_traffic = Bytes(0);
             cost.kernels = 0;
             cost.saves_input = false;
             add_eager(kEagerRmsNorm, out(l), cost);
           }},
      element_wise("gelu", "GELU", true),
      element_wise("silu", "SiLU", true),
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
             cost.saved_besides = cost.masks = float32_bytes(drop.kept * out(l));
             cost.forward_cpu_only = float32_bytes(drop.forward_cpu_only * out(l));
             cost.backward_spared = float32_bytes(drop.backward_spared * out(l));
           }},
      {.name = "experts",
       .torch_class = "Experts",
       .attributes = {{"experts", Unit::kCount, {}, 1},
                      {"active", Unit::kCount, {}, 1},
                      {"feed_forward", Unit::kCount, {}, 1},
                      {"shared", Unit::kCount, 0, 0},
                      {"capacity", Unit::kCount, 0, 0},
                      {"ranks", Unit::kCount, 1, 1},
                      {"sigmoid", Unit::kFlag, 0, 0},
                      {"groups", Unit::kCount, 1, 1},
                      {"chosen_groups", Unit::kCount, {}, 1, "groups"},
                      {"router", Unit::kName, {}, 0, "", "gate"},
                      {"gate", Unit::kName, {}, 0, "", "gate_proj"},
                      {"up", Unit::kName, {}, 0, "", "up_proj"},
                      {"down", Unit::kName, {}, 0, "", "down_proj"}},
       .input = kSequence,
       .output = experts_output,
       .parameters = experts_parameters,
       .buffers = experts_buffers,
       .saves_input = true,
       .adjust = add_experts,
       .ready_order = ReadyOrder::kReversed},
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
       .product =
           [](const Layer& l) {
             return Gemm{static_cast<double>(l.input[0]), number(l, "rows"), number(l, "columns")};
           },
       .forward = kMatrixForward,
       .backward = kMatrixBackward,
       .saves_input = true},
  };
}

}  // namespace stepcast
