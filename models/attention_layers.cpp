#include "models/layer_kinds.hpp"

/// Attention; s, h and a are sequence, hidden and heads.
namespace stepcast {
namespace {

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

bool uses_ring(const Layer& layer) { return says(layer, "ring") && layer.sizes.at("context") > 1; }

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
  if (uses_ring(layer) && (!says(layer, "flash") || layer.sizes.at("dropout") != 0))
    throw InputError("a ring stores no probabilities: it needs flash=1, and no dropout of them");
  if (uses_ring(layer) && layer.input[0] % 2 != 0)
    throw InputError("a ring deals out two equal chunks to each rank; " + std::to_string(layer.input[0]) +
                     " positions of a rank are odd");
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
  double aside = 0.0, backward_memory_bound = 0.0;   ///< of them, of kernels that compute next to nothing
  double spared = 0.0, backward_spared = 0.0;        ///< of those, what a GPU's dropout does not move
  int kernels = 0;
};

/// Stored and read again between softmax and the two products:
///
///     q k^T p, scale and softmax 4 p, causal mask 2 p, dropout as it says, p v p
///
/// With `fused_softmax` one kernel scales, masks and takes the softmax, 2 p (Megatron's). Backward twice that. Kept: p; with dropout also its noise and what is left of p.
ScoresCost stored_scores(std::int64_t dropout, bool causal, bool fused, double p) {
  const DropoutCost drop = dropout_cost(dropout);
  const double softmax = fused ? 2.0 : 4.0 + (causal ? 2.0 : 0.0);
  const double matrices = 1.0 + softmax + 1.0;
  return {(matrices + drop.forward) * p,
          (2.0 * matrices + drop.backward) * p,
          (1.0 + 2.0 * drop.kept) * p,
          drop.kept * p,
          (softmax + drop.forward) * p,
          (2.0 * softmax + drop.backward) * p,
          drop.forward_cpu_only * p,
          drop.backward_spared * p,
          (fused ? 1 : 2 + (causal ? 1 : 0)) + (drop.kept > 0.0 ? 1 : 0)};
}

/// What lies between q, k and v and the output where probabilities are stored. \param cost whose last products are the two
/// of the scores \param vectors elements of q, k, v and the output
std::vector<LayerWork> stored_core(const LayerCost& cost, Flop scores, double vectors,
                                   const ScoresCost& matrices) {
  return {{.forward = scores,
           .forward_traffic = float32_bytes(vectors + matrices.forward - matrices.aside),
           .forward_kernels = 2,
           .products = {cost.products.end() - 2, cost.products.end()}},
          {.forward_traffic = float32_bytes(matrices.aside),
           .forward_cpu_only = float32_bytes(matrices.spared),
           .forward_kernels = matrices.kernels}};
}

/// What lies between q, k, v and the output around a ring of c ranks (Liu et al., "Ring Attention", 2023), each of which has two
/// of 2c chunks of the sequence, s positions (zigzag, as Megatron's `p2p`): `flash` in c steps. In the first one the
/// rank's own keys and values are attended to, in the others those that have come from the rank before meanwhile; causal ones
/// of a rank further down are seen by half, from all positions (of one further up all, from half of them), so that every
/// step takes 2 s^2 q flop, or 4 s^2 q. Then parts are put together by the logarithms of their sums of exponentials; in the
/// backward gradients of q, and those of k and v that came, are summed. Traffic of that in elements, c - 1 times:
///
///     forward   3 s q + 3 s a        backward   3 s q + 6 s w
///
/// as two kernels each. Kept: x, q, those numbers, and one rank's k and v, s w each. Left out: the parts are in fp32 whatever
/// the precision. \param w width of keys and values, copied for each query or not
void add_ring(const Layer& layer, double w, LayerCost& cost) {
  const auto s = static_cast<double>(layer.input[0]);
  const auto q = static_cast<double>(widths(layer).q);
  const double heads = number(layer, "heads"), head = q / heads, rows = heads * s;
  const bool causal = says(layer, "causal");
  const int steps = static_cast<int>(layer.sizes.at("context"));
  for (int i = 0; i < steps; ++i) {
    const double keys = causal && i > 0 ? s / 2.0 : s;
    const Flop flop(4.0 * s * keys * q * (causal && i == 0 ? 0.5 : 1.0));
    cost.steps.push_back(
        {.forward = flop,
         .again = 0.5 * flop,
         .forward_traffic = float32_bytes(2.0 * (s * q + keys * w) + rows),
         .backward_traffic = float32_bytes(4.0 * (s * q + keys * w) + rows),
         .forward_kernels = 1,
         .backward_kernels = 2,
         .attention = FusedAttention{heads, w / head, s, keys, head, head, causal && i == 0}});
  }
  cost.steps.push_back({.forward_traffic = float32_bytes((steps - 1) * 3.0 * (s * q + rows)),
                        .backward_traffic = float32_bytes((steps - 1) * 3.0 * (s * q + 2.0 * s * w)),
                        .forward_kernels = 2 * (steps - 1),
                        .backward_kernels = 2 * (steps - 1)});
  for (const LayerWork& step : cost.steps) {
    cost.forward += step.forward;
    cost.again += step.again;
    cost.forward_traffic += step.forward_traffic;
    cost.backward_traffic += step.backward_traffic;
  }
  cost.saved_besides += float32_bytes(s * q + 2.0 * s * w + rows);
}

/// softmax(q k^T / sqrt(d)) v per head, without the projection that follows; q = a d and w = kv_heads d are the widths
/// of queries and of keys.
///
///     flop = 2 s h (q + 2 w) + 4 s^2 q               (three projections; q k^T and p v)
///
/// Traffic in elements, forward, beside that of p (see stored_scores):
///
///     projections      s (3 h + q + 2 w), or fused s (h + q + 2 w)
///     norms, rotary    2 s (q + w) each, as one kernel each, or `eager`
///     split by heads   2 s (q + 2 w)                 (q, k and v are copied head by head)
///     repeated heads   s (2 w + 2 q)                 (where several queries share a key)
///     q k^T            2 s q
///     p v, join heads  2 s q, 2 s q
///
/// Backward twice that, as each product has two, each element-wise step reads a second tensor, and copies go
/// both ways. Kept: x, q, k, v and p. Softmax's flop are left out. Copies and what happens to p between its products are
/// kernels of their own: three for splitting, one each for scale, softmax, mask, dropout and joining.
///
/// With `context` c, keys and values are those of c s positions; or they go round a ring: see add_ring(). With `repeat_kv` keys
/// and values of a position are copied for each query before that, 2 s (w + q), and added up again in the backward.
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
  const bool flash = says(layer, "flash"), eager = says(layer, "eager"), repeats = w < q;
  const bool copies = says(layer, "repeat_kv") && flash && repeats;
  const double rows = number(layer, "heads") * s;
  const auto products = static_cast<int>(projections(layer).size());
  const int in_place = eager ? 0 : (says(layer, "norms") ? 1 : 0) + (says(layer, "rotary") ? 1 : 0);
  const double around = s * (products * h + q + 2.0 * w + 2.0 * in_place * (q + w));
  const double scores = 4.0 * s * keys * q * (flash && says(layer, "causal") ? 0.5 : 1.0);
  cost.forward = Flop(2.0 * s * h * (q + 2.0 * w) + scores);
  cost.saved_besides = uses_ring(layer) ? Bytes(0) : float32_bytes(s * q + 2.0 * keys * w);
  cost.kernels = products + 2 * in_place;
  for (const LayerPart& part : projections(layer))
    cost.products.push_back({s, static_cast<double>(part.count), h});
  const double heads = number(layer, "heads"), head = q / heads;
  if (eager && says(layer, "norms")) add_eager(kEagerRmsNorm, s * (q + w), cost);
  if (eager && says(layer, "rotary")) add_eager(kEagerRotary, s * (q + w), cost);
  const double kv = copies ? q : w, copies_kv = copies ? 2.0 * s * (w + q) : 0.0;
  if (uses_ring(layer)) {
    cost.forward = cost.forward - Flop(scores);
    cost.forward_traffic += float32_bytes(around + copies_kv);
    cost.backward_traffic += float32_bytes(2.0 * around + copies_kv);
    cost.kernels += copies ? 2 : 0;
    return add_ring(layer, kv, cost);
  }
  if (flash) {
    const double vectors = s * q + keys * kv;
    cost.attention = FusedAttention{heads, kv / head, s, keys, head, head, says(layer, "causal")};
    cost.forward_traffic += float32_bytes(around + copies_kv + 2.0 * vectors + rows);
    cost.backward_traffic += float32_bytes(2.0 * around + copies_kv + 4.0 * vectors + rows);
    cost.saved_besides += float32_bytes(2.0 * keys * (kv - w) + rows);
    cost.again = Flop(0.5 * scores);
    cost.kernels += copies ? 3 : 1;
    cost.core = {{.forward = Flop(scores),
                  .forward_traffic = float32_bytes(2.0 * vectors + rows),
                  .forward_kernels = 1,
                  .attention = cost.attention}};
    cost.core_saved = float32_bytes(rows);
    return;
  }
  const ScoresCost matrices = stored_scores(layer.sizes.at("dropout"), says(layer, "causal"),
                                            says(layer, "fused_softmax"), rows * keys);
  const double copied = 4.0 * s * q + keys * (4.0 * w + (repeats ? 2.0 * (w + q) : 0.0));
  const double vectors = around + copied + 4.0 * s * q;
  cost.forward_traffic += float32_bytes(vectors + matrices.forward);
  cost.backward_traffic += float32_bytes(2.0 * vectors + matrices.backward);
  cost.saved_besides += float32_bytes(matrices.kept);
  cost.masks += float32_bytes(matrices.masks);
  cost.products.push_back({s, keys, head, heads});
  cost.products.push_back({s, head, keys, heads});
  cost.kernels += 3 + 2 + 1 + matrices.kernels + (repeats ? 2 : 0);
  cost.forward_memory_bound = float32_bytes(copied + matrices.aside);
  cost.backward_memory_bound = float32_bytes(2.0 * copied + matrices.backward_memory_bound);
  cost.forward_cpu_only = float32_bytes(matrices.spared);
  cost.backward_spared = float32_bytes(matrices.backward_spared);
  cost.core = stored_core(cost, Flop(scores), 4.0 * s * q, matrices);
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

/// Of multi-head latent attention: what a projection or a norm makes of how many features.
struct LatentPart {
  std::string name;
  std::int64_t in, out;
  bool norm = false;
};

std::vector<LatentPart> latent_parts(const Layer& layer) {
  const auto size = [&](const char* key) { return layer.sizes.at(key); };
  const std::int64_t h = layer.input[1], rank = size("kv_rank"), q_rank = size("q_rank");
  const std::int64_t queries = size("heads") * (size("nope") + size("rope"));
  const std::int64_t keys = size("heads") * (size("nope") + size("value"));
  std::vector<LatentPart> parts{{"q_a_proj", h, q_rank},
                                {"q_a_layernorm", q_rank, q_rank, true},
                                {"q_b_proj", q_rank, queries},
                                {"kv_a_proj_with_mqa", h, rank + size("rope")},
                                {"kv_a_layernorm", rank, rank, true},
                                {"kv_b_proj", rank, keys}};
  if (q_rank > 0) return parts;
  parts.erase(parts.begin(), parts.begin() + 2);
  parts.front() = {"q_proj", h, queries};
  return parts;
}

Shape latent_output(const Layer& layer) {
  if (layer.sizes.at("rope") % 2 != 0)
    throw InputError("rotary positions need a rope of an even size, got " +
                     std::to_string(layer.sizes.at("rope")));
  return {layer.input[0], layer.sizes.at("heads") * layer.sizes.at("value")};
}

std::vector<LayerTensor> latent_parameters(const Layer& layer) {
  std::vector<LayerTensor> result;
  for (const LatentPart& part : latent_parts(layer))
    result.push_back({part.name + ".weight", part.norm ? Shape{part.out} : Shape{part.out, part.in}});
  return result;
}

std::vector<LayerRow> latent_rows(const Layer& layer) {
  std::vector<LayerRow> rows;
  const double s = static_cast<double>(layer.input[0]);
  for (const LatentPart& part : latent_parts(layer)) {
    const auto size = static_cast<double>(part.out), width = static_cast<double>(part.in);
    rows.push_back({full_name(layer, part.name), part.norm ? "RMSNorm" : "Linear",
                    Shape{layer.input[0], part.out}, part.norm ? part.out : part.in * part.out,
                    Flop(part.norm ? 4.0 * s * size : 2.0 * s * width * size)});
  }
  return rows;
}

/// Multi-head latent attention as it is trained (DeepSeek-V2, 2024; eager code of transformers), without the projection that
/// follows. Of x, products give a latent of queries c_q (q_rank wide, normed) and one of keys and values c (kv_rank, normed)
/// beside the rotary part of keys k_r, which all heads share; of these come per head q = [q_n, q_r], k_n and v. Then
/// softmax(q [k_n, k_r]^T / sqrt(n + r)) v, n, r and w being the sizes of `nope`, `rope` and `value`, causal:
///
///     flop = 2 s (h q_rank + q_rank a (n + r) + h (kv_rank + r) + kv_rank a (n + w)) + 4 s (q_rank + kv_rank)
///            + 2 s^2 a (n + r + w), half of that with `flash`
///
/// q_rank 0: queries are one product of x, h a (n + r). Traffic in elements, forward: each product's input and output, each
/// norm's twice, rotary parts 2 s (a + 1) r, joined keys s (a (2 n + r) + r), and as in `self_attention` attention itself, of
/// keys of n + r and values of w. Backward twice that. Kept: x, the latents before and behind their norms, q, k, and what
/// holds v beside k_n; with `flash` a number per head and position, else copies of q, k and v by head, and the probabilities.
void add_latent_attention(const Layer& layer, LayerCost& cost) {
  const auto s = static_cast<double>(layer.input[0]);
  const double heads = number(layer, "heads"), n = number(layer, "nope"), r = number(layer, "rope");
  const double w = number(layer, "value"), d = n + r;
  const double latents = number(layer, "q_rank") + number(layer, "kv_rank");
  const bool flash = says(layer, "flash");
  double around = s * (2.0 * (heads + 1.0) * r + heads * (2.0 * n + r) + r), products = 0.0;
  for (const LatentPart& part : latent_parts(layer)) {
    const auto from = static_cast<double>(part.in), to = static_cast<double>(part.out);
    around += s * (from + to);
    ++cost.kernels;
    if (part.norm) continue;
    cost.products.push_back({s, to, from});
    products += 2.0 * s * from * to;
  }
  const double scores = 2.0 * s * s * heads * (d + w) * (flash ? 0.5 : 1.0);
  const double norms = number(layer, "q_rank") > 0.0 ? 2.0 : 1.0;
  cost.forward = Flop(products + 4.0 * s * latents + scores);
  cost.kernels += 2;  // one is there already: rotary parts of queries and keys, joined keys
  cost.saved_besides = float32_bytes(s * (2.0 * latents + r + norms + 2.0 * heads * d + heads * (n + w)));
  const double vectors = s * heads * (d + w);  // q and v, or k and what they give
  if (flash) {
    cost.attention = FusedAttention{heads, heads, s, s, d, w, true};
    cost.forward_traffic = float32_bytes(around + 2.0 * vectors + heads * s);
    cost.backward_traffic = float32_bytes(2.0 * around + 4.0 * vectors + heads * s);
    cost.saved_besides += float32_bytes(heads * s);
    cost.again = Flop(scores * d / (d + w));
    cost.kernels += 1;
    cost.core = {{.forward = Flop(scores),
                  .forward_traffic = float32_bytes(2.0 * vectors + heads * s),
                  .forward_kernels = 1,
                  .attention = cost.attention}};
    cost.core_saved = float32_bytes(heads * s);
    return;
  }
  const ScoresCost matrices = stored_scores(0, true, false, heads * s * s);
  const double copied = 4.0 * vectors;
  cost.forward_traffic = float32_bytes(around + copied + 2.0 * vectors + matrices.forward);
  cost.backward_traffic = float32_bytes(2.0 * (around + copied + 2.0 * vectors) + matrices.backward);
  cost.saved_besides += float32_bytes(s * heads * (2.0 * d + w) + matrices.kept);
  cost.products.push_back({s, s, d, heads});
  cost.products.push_back({s, w, s, heads});
  cost.kernels += 4 + 2 + matrices.kernels;
  cost.forward_memory_bound = float32_bytes(copied + matrices.aside);
  cost.backward_memory_bound = float32_bytes(2.0 * copied + matrices.backward_memory_bound);
  cost.core = stored_core(cost, Flop(scores), 2.0 * vectors, matrices);
  cost.core_saved = float32_bytes(matrices.kept);
}

}  // namespace

std::vector<LayerKind> attention_kinds() {
  return {
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
                      {"eager", Unit::kFlag, 0, 0},
                      {"repeat_kv", Unit::kFlag, 0, 0},
                      {"fused_softmax", Unit::kFlag, 0, 0},
                      {"dropout", Unit::kCount, 0, 0},
                      {"context", Unit::kCount, 1, 1},
                      {"ring", Unit::kFlag, 0, 0},
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
      {.name = "latent_attention",
       .torch_class = "Linear",
       .attributes = {{"heads", Unit::kCount, {}, 1},
                      {"q_rank", Unit::kCount, 0, 0},
                      {"kv_rank", Unit::kCount, {}, 1},
                      {"nope", Unit::kCount, {}, 0},
                      {"rope", Unit::kCount, {}, 2},
                      {"value", Unit::kCount, {}, 1},
                      {"flash", Unit::kFlag, 0, 0}},
       .input = kSequence,
       .output = latent_output,
       .parameters = latent_parameters,
       .saves_input = true,
       .adjust = add_latent_attention,
       .ready_order = ReadyOrder::kReversed,
       .rows = latent_rows},
  };
}

}  // namespace stepcast
