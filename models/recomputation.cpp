#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "core/error.hpp"
#include "models/layer.hpp"

/// What of a block is computed once more.
namespace stepcast {
namespace {

bool is_weighed(const Gemm& product) { return product.heads <= 0.0; }

/// Takes what attention keeps between q, k, v and its output out of what the segment keeps. \returns whether there is any
bool recompute_attention(Segment& segment, const std::vector<Layer>& layers) {
  bool any = false;
  for (const Layer& layer : layers) {
    for (const std::vector<Layer>* branch : {&layer.body, &layer.shortcut})
      any = recompute_attention(segment, *branch) || any;
    const LayerCost cost = cost_of(layer);
    if (cost.core.empty()) continue;
    any = true;
    std::ranges::copy(cost.core, std::back_inserter(segment.recomputed));
    segment.recomputed_size += cost.core_saved;
    segment.recomputed_mask_size += cost.core_masks;
    segment.saved_size = segment.saved_size - cost.core_saved;
    segment.mask_size = segment.mask_size - cost.core_masks;
  }
  return any;
}

/// How many of a segment's works run again: those before the last product, unless a dropout is behind it.
std::size_t works_again(const std::vector<LayerWork>& works) {
  for (std::size_t i = works.size(); i-- > 0;) {
    if (works[i].forward_cpu_only > Bytes(0)) return i + 1;
    if (std::ranges::any_of(works[i].products, is_weighed)) return i;
  }
  return 0;
}

/// Without the products and the attention whose outputs are kept; `kept` grows by those.
LayerWork without_kept(LayerWork work, int& product_number, Bytes& kept) {
  const auto take = [&](Flop flop, double read, double written, double weights) {
    work.forward -= flop;
    work.forward_traffic = work.forward_traffic - float32_bytes(read + written);
    work.forward_weights = work.forward_weights - float32_bytes(weights);
    work.forward_kernels -= 1;
    kept += float32_bytes(written);
  };
  std::erase_if(work.products, [&](const Gemm& one) {
    if (!is_weighed(one) || ++product_number % 2 == 0) return false;
    take(Flop(2.0 * one.rows * one.columns * one.depth), one.rows * one.depth, one.rows * one.columns,
         one.columns * one.depth);
    return true;
  });
  if (const auto attention = std::exchange(work.attention, {})) {
    const double d = attention->head_size, w = attention->value_size;
    const double rows = attention->heads * attention->rows, keys = attention->kv_heads * attention->keys;
    take(Flop((attention->causal ? 1.0 : 2.0) * rows * attention->keys * (d + w)), 0.0, rows * (w + 1.0),
         0.0);
    work.forward_traffic =
        std::max(Bytes(0), work.forward_traffic - float32_bytes(rows * d + keys * (d + w)));
  }
  work.backward = work.again = Flop(0);
  work.backward_traffic = work.backward_weights = work.backward_spared = Bytes(0);
  work.in_float32.backward = work.in_float32.backward_casts = 0.0;
  work.backward_kernels = 0;
  return work;
}

/// Collectives of a forward that its repetition takes again; torchtitan keeps what reduce-scatters give.
void repeat_exchanges(Model& model, std::size_t index, std::size_t works, Bytes& kept) {
  Segment& segment = model.segments[index];
  std::vector<int> again;
  for (const int number : segment.exchanges) {
    LayerCollective exchange = model.exchanges[static_cast<std::size_t>(number)];
    if (exchange.backward || exchange.group != ExchangeGroup::kTensor) continue;
    if (exchange.kind == ExchangeKind::kReduceScatter) kept += (1.0 / model.tensor) * exchange.per_sample;
    if (exchange.kind == ExchangeKind::kReduceScatter || exchange.work > static_cast<int>(works)) continue;
    exchange.name += ".recomputed";
    exchange.backward = true;
    exchange.work = static_cast<int>(segment.work.size());
    exchange.ready = 0;
    again.push_back(static_cast<int>(model.exchanges.size()));
    model.exchanges.push_back(exchange);
  }
  const auto first = std::ranges::find_if(segment.exchanges, [&](int number) {
    return model.exchanges[static_cast<std::size_t>(number)].backward;
  });
  segment.exchanges.insert(first, again.begin(), again.end());
}

void recompute_operations(Model& model, std::size_t index) {
  Segment& segment = model.segments[index];
  const std::size_t end = works_again(segment.work);
  Bytes kept = segment.output_size;
  int number = 0;
  // What a reduce-scatter gives is kept (repeat_exchanges), and with it what its layer makes of that.
  const auto is_scattered = [&](std::size_t work) {
    return std::ranges::any_of(segment.exchanges, [&](int which) {
      const LayerCollective& exchange = model.exchanges[static_cast<std::size_t>(which)];
      return !exchange.backward && exchange.kind == ExchangeKind::kReduceScatter &&
             exchange.work == static_cast<int>(work);
    });
  };
  for (std::size_t i = 0; i < end; ++i)
    if (LayerWork work = without_kept(segment.work[i], number, kept); !is_scattered(i))
      segment.recomputed.push_back(std::move(work));
  // What runs again makes all that a backward needs and was not kept. Outputs behind it are kept for nothing.
  segment.recomputed_size = std::max(Bytes(0), segment.saved_size - kept);
  for (std::size_t i = end; i < segment.work.size(); ++i) without_kept(segment.work[i], number, kept);
  repeat_exchanges(model, index, end, kept);
  segment.recomputed_mask_size = std::exchange(segment.mask_size, Bytes(0));
  segment.recomputed_float32_size = std::exchange(segment.float32_size, Bytes(0));
  segment.saved_size = kept;
}

}  // namespace

std::string to_text(RecomputedPart part) {
  switch (part) {
    case RecomputedPart::kCoreAttention:
      return "selective";
    case RecomputedPart::kOperations:
      return "per-op";
    case RecomputedPart::kNothing:
      break;
  }
  return "none";
}

Model recomputing(Model model, RecomputedPart part) {
  model.recomputed_part = part;
  if (part == RecomputedPart::kNothing) return model;
  const auto refuse = [&](const std::string& name, const std::string& why) {
    throw InputError("--recompute " + name + ": '" + model.specification + "' " + why);
  };
  if (model.has_fixed_times())
    refuse("of a part", "declares its times, which say nothing of parts of a block");
  if (model.ring) refuse("of a part", "attends around a ring, of which no part runs again alone; full does");
  if (part == RecomputedPart::kCoreAttention) {
    bool any = false;
    for (Segment& segment : model.segments) any = recompute_attention(segment, segment.layers) || any;
    if (!any) refuse("selective", "has no attention that could be computed again");
    return model;
  }
  const auto chooses = [](const LayerWork& work) {
    return std::ranges::any_of(work.products, &Gemm::chooses);
  };
  bool any = false;
  for (std::size_t i = 0; i < model.segments.size(); ++i) {
    if (!model.segments[i].repeated) continue;
    if (std::ranges::any_of(model.segments[i].work, chooses))
      refuse("per-op", "has experts, of which it is not known what is kept");
    any = true;
    recompute_operations(model, i);
  }
  if (!any) refuse("per-op", "repeats no blocks");
  return model;
}

}  // namespace stepcast
