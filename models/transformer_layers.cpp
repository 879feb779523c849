#include <algorithm>

#include "models/layer_kinds.hpp"

/// Layers of transformers; s, h and a are sequence, hidden and heads.
namespace stepcast {
namespace {

void expect_percent(const Layer& layer, const std::string& key) {
  if (layer.sizes.at(key) >= 100)
    throw InputError(key + " is a percentage below 100, found " + std::to_string(layer.sizes.at(key)));
}

/// As PyTorch makes it on a CPU: noise is drawn, divided by 1 - p and multiplied with x; the noise is kept.
/// Reads and writes per element.
struct DropoutCost {
  double forward = 6.0;  // the noise is written, read and written, then x and noise are read and y is written
  double backward = 3.0;
  double kept = 1.0;
  // On a GPU one kernel draws the noise, of one byte per element, and applies it.
  double forward_spared = 3.5, backward_spared = 0.5;
};
DropoutCost dropout_cost(std::int64_t percent) {
  return percent > 0 ? DropoutCost{} : DropoutCost{0.0, 0.0, 0.0, 0.0, 0.0};
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

/// The widths of attention.
struct AttentionWidths {
  std::int64_t head = 0;  ///< d
  std::int64_t q = 0;     ///< a d, of queries and of the output
  std::int64_t kv = 0;    ///< of keys, and of values
};

AttentionWidths widths(const Layer& layer) {
  const std::int64_t heads = layer.sizes.at("heads");
  std::int64_t head = layer.sizes.at("head_size");
  if (head == 0) head = layer.input[1] / heads;
  return {head, heads * head, layer.sizes.at("kv_heads") * head};
}

bool says(const Layer& layer, const char* flag) { return layer.sizes.at(flag) != 0; }

Shape attention_output(const Layer& layer) {
  expect_percent(layer, "dropout");
  const std::int64_t heads = layer.sizes.at("heads"), kv_heads = layer.sizes.at("kv_heads");
  if (layer.sizes.at("head_size") == 0 && layer.input[1] % heads != 0)
    throw InputError("heads " + std::to_string(heads) + " do not divide the width " +
                     std::to_string(layer.input[1]));
  if (heads % kv_heads != 0)
    throw InputError("kv_heads " + std::to_string(kv_heads) + " do not divide heads " +
                     std::to_string(heads));
  const AttentionWidths width = widths(layer);
  if (says(layer, "fused") && (width.kv != width.q || width.q != layer.input[1]))
    throw InputError("a fused projection has q, k and v of the input's width");
  if (says(layer, "rotary") && width.head % 2 != 0)
    throw InputError("rotary positions need heads of an even size, got " + std::to_string(width.head));
  return {layer.input[0], width.q};
}

std::vector<LayerPart> projections(const Layer& layer) {
  const AttentionWidths width = widths(layer);
  if (says(layer, "fused")) return {{"c_attn", 3 * width.q}};
  return {{layer.texts.at("query"), width.q},
          {layer.texts.at("key"), width.kv},
          {layer.texts.at("value"), width.kv}};
}

std::vector<LayerTensor> attention_parameters(const Layer& layer) {
  std::vector<LayerTensor> result;
  for (const LayerPart& part : projections(layer)) {
    result.push_back({part.name + ".weight", {part.count, layer.input[1]}});
    if (says(layer, "bias")) result.push_back({part.name + ".bias", {part.count}});
  }
  if (says(layer, "norms"))
    for (const char* name : {"q_norm.weight", "k_norm.weight"})
      result.push_back({name, {widths(layer).head}});
  return result;
}

/// What happens to the s x s matrices of probabilities p, of a s^2 elements.
struct ScoresCost {
  double forward = 0.0, backward = 0.0, kept = 0.0;  ///< elements
  double masks = 0.0;                                ///< of those kept, dropout's noise
  double aside = 0.0, backward_aside = 0.0;          ///< of them, of kernels that compute next to nothing
  double spared = 0.0, backward_spared = 0.0;        ///< of those, what a GPU's dropout does not move
  int kernels = 0;
};

/// Stored and read again between softmax and the two products:
///
///     q k^T p, scale and softmax 4 p, causal mask 2 p, dropout as it says, p v p
///
/// With `fused_softmax` one kernel scales, masks and takes the softmax, 2 p (Megatron's). Backward twice that. Kept: p; with dropout also its noise and what is left of p.
ScoresCost stored_scores(const Layer& layer, double p) {
  const DropoutCost drop = dropout_cost(layer.sizes.at("dropout"));
  const bool causal = says(layer, "causal");
  const bool fused = says(layer, "fused_softmax");
  const double softmax = fused ? 2.0 : 4.0 + (causal ? 2.0 : 0.0);
  const double matrices = 1.0 + softmax + 1.0;
  return {(matrices + drop.forward) * p,
          (2.0 * matrices + drop.backward) * p,
          (1.0 + 2.0 * drop.kept) * p,
          drop.kept * p,
          (softmax + drop.forward) * p,
          (2.0 * softmax + drop.backward) * p,
          drop.forward_spared * p,
          drop.backward_spared * p,
          (fused ? 1 : 2 + (causal ? 1 : 0)) + (drop.kept > 0.0 ? 1 : 0)};
}

/// softmax(q k^T / sqrt(d)) v per head, without the projection that follows; q = a d and w = kv_heads d are the widths
/// of queries and of keys.
///
///     flop = 2 s h (q + 2 w) + 4 s^2 q               (three projections; q k^T and p v)
///
/// Traffic in elements, forward, beside that of p (see stored_scores):
///
///     projections      s (3 h + q + 2 w), or fused s (h + q + 2 w)
///     norms, rotary    2 s (q + w) each, as one kernel each
///     split by heads   2 s (q + 2 w)                 (q, k and v are copied head by head)
///     repeated heads   s (2 w + 2 q)                 (where several queries share a key)
///     q k^T            2 s q
///     p v, join heads  2 s q, 2 s q
///
/// Backward twice that, as each product has two, each element-wise step reads a second tensor, and copies go
/// both ways. Kept: x, q, k, v and p. Softmax's flop are left out. Copies and what happens to p between its products are
/// kernels of their own: three for splitting, one each for scale, softmax, mask, dropout and joining.
///
/// With `context` c, keys and values are those of c s positions.
///
/// With `flash` one kernel reads q, k and v and writes the output and one number per head and position; there are no
/// copies, no p, and a causal one computes half of the products (Dao, "FlashAttention-2", 2023). Its backward reads
/// these and dy, computes q k^T again, and writes three gradients. Kept: x, q, k, v and those numbers; dropout's noise is
/// drawn again.
void add_attention(const Layer& layer, LayerCost& cost) {
  const auto s = static_cast<double>(layer.input[0]);
  const double keys = s * number(layer, "context");
  const auto h = static_cast<double>(layer.input[1]);
  const auto q = static_cast<double>(widths(layer).q), w = static_cast<double>(widths(layer).kv);
  const bool flash = says(layer, "flash"), repeats = w < q;
  const double rows = number(layer, "heads") * s;
  const auto products = static_cast<int>(projections(layer).size());
  const int in_place = (says(layer, "norms") ? 1 : 0) + (says(layer, "rotary") ? 1 : 0);
  const double around = s * (products * h + q + 2.0 * w + 2.0 * in_place * (q + w));
  const double scores = 4.0 * s * keys * q * (flash && says(layer, "causal") ? 0.5 : 1.0);
  cost.forward = Flop(2.0 * s * h * (q + 2.0 * w) + scores);
  cost.saved_besides = float32_bytes(s * q + 2.0 * keys * w);
  cost.kernels = products + 2 * in_place;
  for (const LayerPart& part : projections(layer))
    cost.products.push_back({s, static_cast<double>(part.count), h});
  const double heads = number(layer, "heads"), head = q / heads;
  if (flash) {
    cost.attention = FusedAttention{heads, s, keys, head, says(layer, "causal")};
    cost.forward_traffic = float32_bytes(around + 2.0 * (s * q + keys * w) + rows);
    cost.backward_traffic = float32_bytes(2.0 * around + 4.0 * (s * q + keys * w) + rows);
    cost.saved_besides += float32_bytes(rows);
    cost.again = Flop(0.5 * scores);
    cost.kernels += 1;
    cost.core = {{.forward = Flop(scores),
                  .forward_traffic = float32_bytes(2.0 * (s * q + keys * w) + rows),
                  .forward_kernels = 1,
                  .attention = cost.attention}};
    cost.core_saved = float32_bytes(rows);
    return;
  }
  const ScoresCost matrices = stored_scores(layer, rows * keys);
  const double copied = 4.0 * s * q + keys * (4.0 * w + (repeats ? 2.0 * (w + q) : 0.0));
  const double vectors = around + copied + 4.0 * s * q;
  cost.forward_traffic = float32_bytes(vectors + matrices.forward);
  cost.backward_traffic = float32_bytes(2.0 * vectors + matrices.backward);
  cost.saved_besides += float32_bytes(matrices.kept);
  cost.masks += float32_bytes(matrices.masks);
  cost.products.push_back({s, keys, head, heads});
  cost.products.push_back({s, head, keys, heads});
  cost.kernels += 3 + 2 + 1 + matrices.kernels + (repeats ? 2 : 0);
  cost.forward_aside = float32_bytes(copied + matrices.aside);
  cost.backward_aside = float32_bytes(2.0 * copied + matrices.backward_aside);
  cost.forward_spared = float32_bytes(matrices.spared);
  cost.backward_spared = float32_bytes(matrices.backward_spared);
  cost.core = {{.forward = Flop(scores),
                .forward_traffic = float32_bytes(4.0 * s * q + matrices.forward - matrices.aside),
                .forward_kernels = 2,
                .products = {cost.products.end() - 2, cost.products.end()}},
               {.forward_traffic = float32_bytes(matrices.aside),
                .forward_spared = float32_bytes(matrices.spared),
                .forward_kernels = matrices.kernels}};
  cost.core_saved = float32_bytes(matrices.kept);
  cost.core_masks = float32_bytes(matrices.masks);
}

/// One row per projection; the products of the attention itself are no module.
std::vector<LayerRow> attention_rows(const Layer& layer) {
  std::vector<LayerRow> rows;
  for (const LayerPart& part : projections(layer))
    rows.push_back({full_name(layer, part.name), "Linear", Shape{layer.input[0], part.count},
                    (layer.input[1] + (says(layer, "bias") ? 1 : 0)) * part.count,
                    Flop(2.0 * in(layer) * static_cast<double>(part.count))});
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
  return layer.input;
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
/// Traffic in elements, forward: the router s (h + 3 E); per token and active expert its copy in and out 4 h, three
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
  const double around = s * (h + 3.0 * experts + inputs * 3.0 * h + wide * (3.0 + 5.0)) + copied;
  cost.forward = Flop(2.0 * s * h * experts + 6.0 * s * h * wide);
  cost.forward_traffic = float32_bytes(around);
  cost.backward_traffic = float32_bytes(2.0 * around);
  cost.forward_aside = float32_bytes(copied);
  cost.backward_aside = float32_bytes(2.0 * copied);
  cost.saved_besides = float32_bytes(s * (experts + active * 2.0 * h + 4.0 * wide));
  cost.kernels = 4 + static_cast<int>(own) * 8 + (shared > 0.0 ? 6 : 0);
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
      // As one kernel. Keeps x, and one number of every position.
      {.name = "rms_norm",
       .torch_class = "RMSNorm",
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
             cost.forward_spared = float32_bytes(drop.forward_spared * out(l));
             cost.backward_spared = float32_bytes(drop.backward_spared * out(l));
           }},
      {.name = "self_attention",
       .torch_class = "Linear",
       .attributes = {{"heads", Unit::kCount, {}, 1},
                      {"kv_heads", Unit::kCount, {}, 1, "heads"},
                      {"head_size", Unit::kCount, 0, 0},
                      {"bias", Unit::kFlag, 1, 0},
                      {"causal", Unit::kFlag, 0, 0},
                      {"rotary", Unit::kFlag, 0, 0},
                      {"norms", Unit::kFlag, 0, 0},
                      {"fused", Unit::kFlag, 0, 0},
                      {"flash", Unit::kFlag, 0, 0},
                      {"fused_softmax", Unit::kFlag, 0, 0},
                      {"dropout", Unit::kCount, 0, 0},
                      {"context", Unit::kCount, 1, 1},
                      {"query", Unit::kName, {}, 0, "", "query"},
                      {"key", Unit::kName, {}, 0, "", "key"},
                      {"value", Unit::kName, {}, 0, "", "value"}},
       .input = kSequence,
       .output = attention_output,
       .parameters = attention_parameters,
       .saves_input = true,
       .adjust = add_attention,
       .ready_order = ReadyOrder::kReversed,
       .rows = attention_rows},
      {.name = "experts",
       .torch_class = "Experts",
       .attributes = {{"experts", Unit::kCount, {}, 1},
                      {"active", Unit::kCount, {}, 1},
                      {"feed_forward", Unit::kCount, {}, 1},
                      {"shared", Unit::kCount, 0, 0},
                      {"capacity", Unit::kCount, 0, 0},
                      {"ranks", Unit::kCount, 1, 1},
                      {"router", Unit::kName, {}, 0, "", "gate"},
                      {"gate", Unit::kName, {}, 0, "", "gate_proj"},
                      {"up", Unit::kName, {}, 0, "", "up_proj"},
                      {"down", Unit::kName, {}, 0, "", "down_proj"}},
       .input = kSequence,
       .output = experts_output,
       .parameters = experts_parameters,
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
             return MatrixProduct{static_cast<double>(l.input[0]), number(l, "rows"), number(l, "columns")};
           },
       .forward = kMatrixForward,
       .backward = kMatrixBackward,
       .saves_input = true},
  };
}

}  // namespace stepcast
