#include <algorithm>

#include "core/ranges.hpp"
#include "models/layer_kinds.hpp"

/// Attention; s, h and a are sequence, hidden and heads.
namespace stepcast {
namespace {

/// Widths of attention.
struct AttentionWidths {
  std::int64_t head = 0;  ///< d
  std::int64_t q = 0;     ///< a d, of queries and of the output
  std::int64_t kv = 0;    ///< of keys, and of values
};

AttentionWidths widths(const Layer& layer) {
  const std::int64_t heads = size(layer, "heads");
  std::int64_t head = size(layer, "head_size");
  if (head == 0) head = layer.input[1] / heads;
  return {head, heads * head, size(layer, "kv_heads") * head};
}

bool uses_ring(const Layer& layer) { return flag(layer, "ring") && size(layer, "context") > 1; }

Shape attention_output(const Layer& layer) {
  expect_percent(layer, "dropout");
  const std::int64_t heads = size(layer, "heads"), kv_heads = size(layer, "kv_heads");
  if (size(layer, "head_size") == 0 && layer.input[1] % heads != 0)
    throw InputError("heads {} do not divide the width {}", heads, layer.input[1]);
  if (heads % kv_heads != 0) throw InputError("kv_heads {} do not divide heads {}", kv_heads, heads);
  const AttentionWidths width = widths(layer);
  if (flag(layer, "fused") && (width.kv != width.q || width.q != layer.input[1]))
    throw InputError("a fused projection has q, k and v of the input's width");
  if (flag(layer, "padding_mask") && (flag(layer, "causal") || flag(layer, "flash")))
    throw InputError(
        "a padding mask is added to stored probabilities of attention that is not causal; "
        "take padding_mask=0, or flash=0");
  if (uses_ring(layer) && (!flag(layer, "flash") || flag(layer, "dropout")))
    throw InputError("ring attention stores no probabilities: it needs flash=1, and no dropout of them");
  if (uses_ring(layer) && layer.input[0] % 2 != 0)
    throw InputError("ring attention gives each rank two equal chunks; " + std::to_string(layer.input[0]) +
                     " positions per rank are odd");
  if (flag(layer, "window") && (!flag(layer, "flash") || !flag(layer, "causal") || uses_ring(layer)))
    throw InputError("a window needs causal attention with flash=1, and no ring");
  if (splits_heads(layer)) {
    if (uses_ring(layer)) throw InputError("ring=1 and ulysses=1 exclude each other");
    const std::int64_t ranks = size(layer, "context");
    const bool copies = ranks % kv_heads == 0 && flag(layer, "flash") && !flag(layer, kTransformerEngine);
    expect_divisible(copies ? "heads" : "kv_heads", copies ? heads : kv_heads, ranks);
  }
  if (flag(layer, "rotary") && width.head % 2 != 0)
    throw InputError("rotary positions need heads of an even size, found " + std::to_string(width.head));
  return {layer.input[0], width.q};
}

/// A projection of an attention layer, or (`norm`) a norm of `in` features.
struct AttentionPart {
  std::string name;
  std::int64_t in, out;
  bool norm = false;
};

std::vector<AttentionPart> projections(const Layer& layer) {
  const AttentionWidths width = widths(layer);
  const std::int64_t h = layer.input[1];
  if (flag(layer, "fused")) return {{"c_attn", h, 3 * width.q}};
  return {{layer.texts.at("query"), h, width.q},
          {layer.texts.at("key"), h, width.kv},
          {layer.texts.at("value"), h, width.kv}};
}

std::vector<LayerTensor> attention_parameters(const Layer& layer) {
  std::vector<LayerTensor> result;
  for (const AttentionPart& part : projections(layer)) {
    result.push_back({part.name + ".weight", {part.out, part.in}});
    if (flag(layer, "bias")) result.push_back({part.name + ".bias", {part.out}});
  }
  if (flag(layer, "norms"))
    for (const auto& [name, width] :
         {std::pair("q_norm.weight", widths(layer).q), {"k_norm.weight", widths(layer).kv}})
      result.push_back({name, {flag(layer, "wide_norms") ? width : widths(layer).head}});
  if (flag(layer, "sinks")) result.push_back({"sinks", {size(layer, "heads")}});
  return result;
}

/// Attention with stored probabilities, between q, k, v and the output. Elements of its arrays per sample.
struct StoredAttention {
  FusedAttention form;                               ///< shapes; not causal
  double split = 0.0, joined = 0.0, repeated = 0.0;  ///< moved by copies of heads: see add_stored()
  double vectors = 0.0;  ///< of q, k, v and the output, as the two GEMMs read and write them
  bool causal = false, padding_mask = false;
};

/// Adds the cost of stored probabilities p, of a s k elements:
///
///     q k^T p, scale and softmax 4 p, causal or padding mask 2 p, dropout as it has, p v p
///
/// One fused kernel for scale, mask and softmax moves 2 p. Backward twice that; that of an added padding mask
/// moves nothing. Saved: p; with dropout also its noise and the remaining p.
///
/// Copies split q, k and v by head, or repeat k and v, and join heads, and so do those of their gradients.
/// Megatron, whose kernel masks, multiplies views of q, k and v, and joins their gradients in one kernel
/// (megatron/core/transformer/dot_product_attention.py).
void add_stored(const Layer& layer, const StoredAttention& attention, LayerCost& cost) {
  const FusedAttention& form = attention.form;
  const double p = form.heads * form.rows * form.keys;
  const bool fused = flag(layer, "fused_softmax");  // one kernel scales, masks and takes the softmax
  for (const Gemm& gemm : {Gemm{form.rows, form.keys, form.head_size, form.heads},
                           Gemm{form.rows, form.value_size, form.keys, form.heads}}) {
    Kernel& kernel =
        cost.kernels.emplace_back(moves(attention.vectors / 2.0 + p, attention.vectors + 2.0 * p));
    kernel.compute(gemm);
    kernel.role = KernelRole::kCoreAttention;
  }
  const double copied = attention.split + attention.joined + attention.repeated;
  const int repeats = fused && attention.repeated > 0.0 ? 2 : 0;
  cost.separate.push_back(moves(copied - (fused ? attention.split : 0.0), copied, (fused ? 1 : 4) + repeats,
                                (fused ? 2 : 4) + repeats, Moved::kTransposed));
  const bool masks = attention.causal || attention.padding_mask;
  Kernel kernel = fused ? moves(2.0 * p, 4.0 * p)
                        : moves((masks ? 6.0 : 4.0) * p, (attention.causal ? 12.0 : 8.0) * p, masks ? 3 : 2);
  if (attention.padding_mask) kernel.backward_launches = 2;
  keep(p, kernel);
  std::vector<Kernel> between{kernel};
  add_dropout(size(layer, "dropout"), p, between);
  if (between.size() > 1) keep(p, between.front());  // what dropout leaves of p
  for (Kernel& one : between) {
    one.role = KernelRole::kCoreAttention;
    cost.separate.push_back(one);
  }
}

/// Attention in one kernel, which reads q, k and v and writes the output and one number per head and
/// position. Its backward reads these and dy, computes q k^T again, and writes three gradients.
Kernel flash_kernel(const FusedAttention& form) {
  const double rows = form.heads * form.rows;
  const double vectors = rows * form.head_size + form.kv_heads * form.keys * form.value_size;
  const double outputs = rows * form.value_size + form.kv_heads * form.keys * form.head_size;
  Kernel kernel = moves(vectors + outputs + rows, 2.0 * (vectors + outputs) + rows);
  kernel.compute(form);
  return kernel;
}

/// \param copied elements of keys and values that exist only as copies, which are saved too
void add_flash(const FusedAttention& form, double copied, LayerCost& cost) {
  keep(copied, cost.kernels.back());
  Kernel& kernel = cost.kernels.emplace_back(flash_kernel(form));
  keep_in_float32(form.heads * form.rows, kernel);
  kernel.role = KernelRole::kCoreAttention;
}

/// Adds attention around a ring of c ranks (Liu et al., "Ring Attention", 2023). Each rank has two of 2c
/// chunks of the sequence, s positions (zigzag, as Megatron's `p2p`): `flash` in c steps. The first step
/// attends to the rank's own keys and values, the others to those that have meanwhile arrived from the
/// previous rank. Causal keys of a rank further down are seen by half, from all positions (of one further up
/// all, from half of them), so that every step takes 2 s^2 q flop, or 4 s^2 q. Then parts are combined by the
/// logarithms of their sums of exponentials; the backward sums gradients of q, and those of k and v that
/// arrived. Traffic of that in elements, c - 1 times:
///
///     forward   3 s q + 3 s a        backward   3 s q + 6 s w
///
/// as two kernels each. Saved: x, q, those numbers, and one rank's k and v, s w each. Left out: the parts are
/// in fp32 whatever the precision. \param w width of keys and values, copied for each query or not
void add_ring(const Layer& layer, double w, LayerCost& cost) {
  const auto s = static_cast<double>(layer.input[0]);
  const auto q = static_cast<double>(widths(layer).q);
  const double heads = number(layer, "heads"), head = q / heads, rows = heads * s;
  const bool causal = flag(layer, "causal");
  const int steps = static_cast<int>(size(layer, "context"));
  for (int i = 0; i < steps; ++i) {
    const double keys = causal && i > 0 ? s / 2.0 : s;
    cost.steps.push_back(flash_kernel({heads, w / head, s, keys, head, head, causal && i == 0}));
    cost.steps.back().backward_launches = 2;
  }
  const int turns = steps - 1;
  Kernel& combined = cost.steps.emplace_back(
      moves(3.0 * turns * (s * q + rows), 3.0 * turns * (s * q + 2.0 * s * w), 2 * turns, 2 * turns));
  keep(s * q + 2.0 * s * w, combined);
  keep_in_float32(rows, combined);
}

/// softmax(q k^T / sqrt(d)) v per head, without the projection that follows; q = a d and w = kv_heads d are
/// the widths of queries and of keys.
///
///     flop = 2 s h (q + 2 w) + 4 s^2 q               (three projections; q k^T and p v)
///
/// Traffic in elements, forward, without that of p (see add_stored):
///
///     projections      s (3 h + q + 2 w), or fused s (h + q + 2 w)
///     norms, rotary    2 s (q + w) each, as one kernel each, or `eager`
///     split by heads   2 s (q + 2 w)                 (q, k and v are copied head by head)
///     repeated heads   s (2 w + 2 q)                 (if several queries share a key)
///     q k^T            2 s q
///     p v, join heads  2 s q, 2 s q
///
/// Backward twice that, because each product has two, and each element-wise step reads a second tensor.
/// Copies move as much in the backward as in the forward. Saved: x, q, k, v and p, and of norms q and k
/// before them, from which a compiler makes those after them. Softmax's flop are left out. Copies and the
/// operations on p between its products are separate kernels: three for splitting (none with
/// `fused_softmax`), one each for scale, softmax, mask, dropout and joining.
///
/// With `context` c, keys and values are those of c s positions; or they rotate through a ring: see
/// add_ring(). With `ulysses` (Jacobs et al., "DeepSpeed Ulysses", 2023) all-to-alls turn s positions of all
/// heads into c s positions of 1/c of the heads, and back; q, k, v and the result are copied for that, and
/// the result is saved before and after (Transformer Engine from 2.8 on). With `repeat_kv` keys and values of
/// a position are copied for each query before that, 2 s (w + q), and summed in the backward. All-to-alls of
/// fewer than c of their heads copy these for c ranks (DeepSpeed's UlyssesSPAttentionHF). With `flash` there
/// are no copies and no p, and a causal kernel computes half of the products (Dao, "FlashAttention-2", 2023;
/// see add_flash). Dropout's noise is drawn again.
void add_attention(const Layer& layer, LayerCost& cost) {
  const auto s = static_cast<double>(layer.input[0]);
  const bool by_heads = splits_heads(layer);
  const double parts_of_heads = by_heads ? number(layer, "context") : 1.0;
  const double keys = s * number(layer, "context"), kept = by_heads ? s : keys;
  const auto h = static_cast<double>(layer.input[1]);
  const auto q = static_cast<double>(widths(layer).q), w = static_cast<double>(widths(layer).kv);
  const bool flash = flag(layer, "flash"), eager = flag(layer, "eager"), repeats = w < q;
  const double heads = number(layer, "heads"), head = q / heads;
  const std::vector<AttentionPart> parts = projections(layer);
  const double kv = flag(layer, "repeat_kv") && flash ? q : by_heads ? std::max(w, parts_of_heads * head) : w;
  cost.kernels.clear();
  for (const AttentionPart& part : parts)
    cost.kernels.push_back(multiplies({.rows = s,
                                       .columns = static_cast<double>(part.out),
                                       .depth = h,
                                       .shares_input = !cost.kernels.empty()}));
  for (const auto& [present, each] :
       {std::pair{flag(layer, "norms"), kEagerRmsNorm}, {flag(layer, "rotary"), kEagerRotary}}) {
    if (!present) continue;
    if (eager)
      add_eager(each, s * (q + w), layer.frozen, cost);
    else
      cost.kernels.push_back(moves(2.0 * s * (q + w), 4.0 * s * (q + w), 2));
  }
  if (kv > w) cost.kernels.push_back(moves(2.0 * s * (w + kv), 2.0 * s * (w + kv), 2));
  if (flag(layer, "norms") && !flag(layer, kCompiled)) keep(s * (q + w), cost.kernels.back());
  if (flag(layer, "norms") && flag(layer, kTransformerEngine))
    keep_in_float32(s * (heads + kv / head), cost.kernels.back());
  if (uses_ring(layer)) return add_ring(layer, kv, cost);
  const bool again = !by_heads && keys > s && flag(layer, "gather_kv_again");
  keep(s * q + 2.0 * (again ? s : kept) * w, cost.kernels.front());
  if (again)
    cost.workspace = {float32_bytes(2.0 * keys * w), float32_bytes(4.0 * keys * w)};  // with gradients
  if (by_heads) {
    cost.kernels.push_back(moves(4.0 * s * (q + kv), 4.0 * s * (q + kv), 2));
    keep(s * q, cost.kernels.back());
  }
  FusedAttention form{
      heads / parts_of_heads,        kv / head / parts_of_heads, s * parts_of_heads, keys, head, head,
      flash && flag(layer, "causal")};
  if (flash) form.window = number(layer, "window");
  form.sinks = flag(layer, "sinks") && flag(layer, kTransformerEngine);
  if (flash && flag(layer, "output_copied")) keep(s * q, cost.kernels.back());
  if (flash) return add_flash(form, 2.0 * kept * (kv - w), cost);
  add_stored(layer,
             {.form = form,
              .split = 2.0 * s * q + (repeats ? 0.0 : 4.0 * kept * w),
              .joined = 2.0 * s * q,
              .repeated = repeats ? 2.0 * kept * (w + q) : 0.0,
              .vectors = 4.0 * s * q,
              .causal = flag(layer, "causal"),
              .padding_mask = flag(layer, "padding_mask")},
             cost);
}

/// True for a part that makes latents. Ranks with parts of the sequence gather these after it.
bool is_before_gather(const AttentionPart& part) {
  return part.norm || part.name.find("_a_proj") != std::string::npos;
}

/// In the order of registration: of Hugging Face, or those before a gather first, since their gradients are
/// ready last.
std::vector<AttentionPart> latent_parts(const Layer& layer) {
  const std::int64_t h = layer.input[1], rank = size(layer, "kv_rank"), q_rank = size(layer, "q_rank");
  const std::int64_t heads = size(layer, "heads"), nope = size(layer, "nope"), rope = size(layer, "rope");
  std::vector<AttentionPart> parts{{"q_a_proj", h, q_rank},
                                   {"q_a_layernorm", q_rank, q_rank, true},
                                   {"q_b_proj", q_rank, heads * (nope + rope)},
                                   {"kv_a_proj_with_mqa", h, rank + rope},
                                   {"kv_a_layernorm", rank, rank, true},
                                   {"kv_b_proj", rank, heads * (nope + size(layer, "value"))}};
  if (q_rank == 0) {
    parts.erase(parts.begin(), parts.begin() + 2);
    parts.front() = {"q_proj", h, heads * (nope + rope)};
  }
  if (!layer.body.empty()) std::ranges::stable_partition(parts, is_before_gather);
  return parts;
}

Shape latent_output(const Layer& layer) {
  if (size(layer, "rope") % 2 != 0)
    throw InputError("rotary positions need a rope of an even size, found {}", size(layer, "rope"));
  if (size(layer, "context") > 1)
    throw InputError("context={}: parts of a sequence are not modelled for latent attention; take context=1",
                     size(layer, "context"));
  return {layer.input[0], size(layer, "heads") * size(layer, "value")};
}

std::vector<LayerTensor> latent_parameters(const Layer& layer) {
  return transformed(latent_parts(layer), [](const AttentionPart& part) {
    return LayerTensor{part.name + ".weight", part.norm ? Shape{part.out} : Shape{part.out, part.in}};
  });
}

/// Multi-head latent attention in training (DeepSeek-V2, 2024; eager code of transformers), without the
/// projection that follows. GEMMs turn x into a latent of queries c_q (q_rank wide, normed) and one of keys
/// and values c (kv_rank, normed), and the rotary part of keys k_r, which all heads share. Of these follow
/// per head q = [q_n, q_r], k_n and v. Then softmax(q [k_n, k_r]^T / sqrt(n + r)) v, causal, with the sizes
/// n, r and w of `nope`, `rope` and `value`:
///
///     flop = 2 s (h q_rank + q_rank a (n + r) + h (kv_rank + r) + kv_rank a (n + w))
///            + 4 s (q_rank + kv_rank) + 2 s^2 a (n + r + w), half of the last with `flash`
///
/// q_rank 0: queries are one GEMM of x, h a (n + r). Traffic in elements, forward: input and output of each
/// GEMM, those of each norm twice, rotary parts 2 s (a + 1) r, joined keys s (a (2 n + r) + r), and attention
/// as in `self_attention`, with keys of n + r and values of w. Backward twice that. Saved: x, the latents
/// before and after their norms, q, k, and the array with v and k_n, of which Transformer Engine keeps v;
/// with `flash` a number per head and position, else the probabilities and, but in Transformer Engine, copies
/// of q, k and v by head.
///
/// Tensor-parallel ranks with parts of the sequence make and norm the latents of their own positions alone,
/// s/t rows, and gather them (megatron/core/transformer/multi_latent_attention.py), with q_rank 0 beside x.
void add_latent_attention(const Layer& layer, LayerCost& cost) {
  const auto s = static_cast<double>(layer.input[0]);
  const double own = layer.body.empty() ? s : static_cast<double>(layer.body.front().input[0]);
  const double heads = number(layer, "heads"), n = number(layer, "nope"), r = number(layer, "rope");
  const double w = number(layer, "value"), d = n + r;
  const double latents = number(layer, "q_rank") + number(layer, "kv_rank");
  const bool flash = flag(layer, "flash");
  const double rotated = s * (2.0 * (heads + 1.0) * r + heads * (2.0 * n + r) + r);
  Kernel up = moves(rotated, 2.0 * rotated, 3);  // rotary parts of queries and keys, joined keys
  up.role = KernelRole::kUpProjection;
  cost.kernels.clear();
  for (const AttentionPart& part : latent_parts(layer)) {
    const auto from = static_cast<double>(part.in), to = static_cast<double>(part.out);
    if (part.norm) {
      cost.kernels.push_back(moves(own * (from + to), 2.0 * own * (from + to)));
      cost.kernels.back().flop = Flop(4.0 * own * to);
    } else {
      cost.kernels.push_back(multiplies({is_before_gather(part) ? own : s, to, from}));
    }
    if (part.name.find("_a_proj") == std::string::npos) cost.kernels.back().role = KernelRole::kUpProjection;
  }
  const double norms = number(layer, "q_rank") > 0.0 ? 2.0 : 1.0;
  const bool engine = flag(layer, kTransformerEngine);
  const double values = engine ? heads * w : heads * (n + w);
  Kernel& down = *std::ranges::find(cost.kernels, KernelRole::kOther, &Kernel::role);
  keep(own * (latents + r), down);
  keep_in_float32(own * norms, down);
  const bool saves_gathered = !layer.body.empty() && !flag(layer.body.front(), "regather");
  keep((saves_gathered ? 0.0 : own * latents) + s * (2.0 * heads * d + values), up);
  const FusedAttention form{heads, heads, s, s, d, w, flash};
  cost.kernels.push_back(up);
  if (flash) return add_flash(form, 0.0, cost);
  const double vectors = s * heads * (d + w);  // q and v, or k and what they give
  if (!engine) keep(s * heads * (2.0 * d + w), cost.kernels.back());
  add_stored(layer,
             {.form = form,
              .split = 2.0 * vectors + 2.0 * s * heads * d,
              .joined = 2.0 * s * heads * w,
              .vectors = 2.0 * vectors,
              .causal = true},
             cost);
}

}  // namespace

std::vector<LayerKind> attention_kinds() {
  return {{"self_attention", attention_output, attention_parameters, add_attention},
          {"latent_attention", latent_output, latent_parameters, add_latent_attention}};
}

}  // namespace stepcast
