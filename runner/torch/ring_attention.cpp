#include "runner/torch/ring_attention.hpp"

#include <cmath>
#include <limits>
#include <memory>
#include <utility>

#include "runner/torch/collective_functions.hpp"

namespace stepcast {
namespace {

/// Positions of the own q and of the k and v of another rank that attend to each other.
struct Window {
  std::int64_t query = 0, queries = 0;  ///< from where on, how many
  std::int64_t keys = 0;                ///< from the first on
  bool masked = false;
  [[nodiscard]] torch::Tensor of_queries(const torch::Tensor& x) const {
    return x.narrow(-2, query, queries);
  }
  [[nodiscard]] torch::Tensor of_keys(const torch::Tensor& x) const { return x.narrow(-2, 0, keys); }
};

/// Groups the heads that share a key: [batch, kv_heads, heads / kv_heads, positions, features].
torch::Tensor by_key(const torch::Tensor& q, std::int64_t kv_heads) { return q.unflatten(1, {kv_heads, -1}); }

/// a b, where several matrices of a share one of b: [..., m, i, k] and [..., k, j] to [..., m, i, j].
torch::Tensor product(const torch::Tensor& a, const torch::Tensor& b) {
  return torch::matmul(a.flatten(2, 3), b).unflatten(2, {a.size(2), a.size(3)});
}

/// The sum over m of a^T b: [..., m, i, j] and [..., m, i, k] to [..., j, k].
torch::Tensor summed_product(const torch::Tensor& a, const torch::Tensor& b) {
  return torch::matmul(a.flatten(2, 3).transpose(-1, -2), b.flatten(2, 3));
}

struct AttentionRing {
  RingForm form;
  torch::Tensor future;  ///< mask of later positions
  torch::ScalarType sums;

  [[nodiscard]] int ranks() const { return static_cast<int>(form.backward.size()); }
  [[nodiscard]] int owner(int step) const { return (form.rank - step + 2 * ranks()) % ranks(); }
  [[nodiscard]] Window window(int owner, std::int64_t positions) const {
    const std::int64_t half = positions / 2;
    if (!form.causal) return {0, positions, positions};
    if (owner == form.rank) return {0, positions, positions, true};
    return owner < form.rank ? Window{0, positions, half} : Window{half, half, positions};
  }

  /// q k^T / sqrt(d) of a window.
  [[nodiscard]] torch::Tensor scores(const torch::Tensor& q, const torch::Tensor& k,
                                     const Window& window) const {
    torch::Tensor scores = product(window.of_queries(q), window.of_keys(k).transpose(-1, -2)).to(sums);
    scores = scores.div_(std::sqrt(static_cast<double>(q.size(-1))));
    return window.masked ? scores.masked_fill_(future, -std::numeric_limits<double>::infinity()) : scores;
  }

  [[nodiscard]] torch::Tensor begin(const RingForm::Shift& shift, const torch::Tensor& sent) const {
    return form.model->collective(shift.begin, sent);
  }
  [[nodiscard]] torch::Tensor end(const RingForm::Shift& shift, const torch::Tensor& arriving) const {
    return form.model->collective(shift.end, arriving);
  }
};

/// Partial result of a step: its output, and the logarithm of the sum of its exponentials.
struct AttendedPart {
  torch::Tensor output, log_sum;
};

AttendedPart part_of(const AttentionRing& ring, const torch::Tensor& q, const torch::Tensor& both,
                     const Window& window) {
  torch::Tensor scores = ring.scores(q, both[0], window);
  torch::Tensor log_sum = scores.logsumexp(-1, true);
  const torch::Tensor probabilities = scores.sub_(log_sum).exp_().to(q.scalar_type());
  return {product(probabilities, window.of_keys(both[1])).to(ring.sums), std::move(log_sum)};
}

/// Adds a part to the result of the positions of the window.
void add(const AttendedPart& part, const Window& window, AttendedPart& whole) {
  torch::Tensor output = window.of_queries(whole.output), log_sum = window.of_queries(whole.log_sum);
  const torch::Tensor both = torch::logaddexp(log_sum, part.log_sum);
  output.mul_(log_sum.sub(both).exp_()).add_(part.output.mul(part.log_sum.sub(both).exp_()));
  log_sum.copy_(both);
}

/// q [batch, heads, positions, features], k and v [batch, kv_heads, positions, features] to [batch,
/// positions, heads x features].
struct RingAttention : torch::autograd::Function<RingAttention> {
  static torch::Tensor forward(AutogradContext* context, const torch::Tensor& q, const torch::Tensor& k,
                               const torch::Tensor& v, const AttentionRing* ring) {
    const torch::Tensor queries = by_key(q, k.size(1));
    torch::Tensor both = torch::stack({k, v}), kept;
    AttendedPart whole;
    for (int i = 0; i < ring->ranks(); ++i) {
      const bool goes_on = i + 1 < ring->ranks();
      torch::Tensor next = goes_on ? ring->begin(ring->form.forward[i], both) : torch::Tensor();
      const Window window = ring->window(ring->owner(i), q.size(2));
      AttendedPart part = part_of(*ring, queries, both, window);
      if (i == 0)
        whole = std::move(part);
      else
        add(part, window, whole);
      if (goes_on) both = ring->end(ring->form.forward[i], next);
      if (i == 0) kept = both;
    }
    torch::Tensor output = whole.output.to(q.scalar_type()).flatten(1, 2).transpose(1, 2).flatten(2);
    context->saved_data["ring"] =
        reinterpret_cast<std::int64_t>(ring);  // NOLINT: saved_data holds no pointers
    context->save_for_backward({q, kept, output, whole.log_sum});
    return output;
  }

  static tensor_list backward(AutogradContext* context, const tensor_list& gradients) {
    const auto* ring = reinterpret_cast<const AttentionRing*>(context->saved_data["ring"].toInt());  // NOLINT
    const tensor_list saved = context->get_saved_variables();
    torch::Tensor both = saved[1];
    const torch::Tensor queries = by_key(saved[0], both.size(2));
    const auto by_head = [&](const torch::Tensor& x) {
      return by_key(x.unflatten(2, {saved[0].size(1), -1}).transpose(1, 2), both.size(2));
    };
    const torch::Tensor given = by_head(gradients.front());
    const torch::Tensor inner = (given * by_head(saved[2])).to(ring->sums).sum(-1, true);
    torch::Tensor of_queries = torch::zeros_like(queries, queries.options().dtype(ring->sums));
    torch::Tensor of_both, travelling;  // gradients of the step before; what is sent and what has arrived
    for (int i = 0; i < ring->ranks(); ++i) {
      const RingForm::Shift& shift = ring->form.backward[i];
      const bool goes_on = i + 1 < ring->ranks();
      if (i == 0)
        travelling = both;
      else if (!goes_on)
        travelling = of_both;
      else if (i == 1)
        travelling = torch::cat({both, of_both});
      const torch::Tensor arriving = ring->begin(shift, travelling);
      const Window window = ring->window(ring->owner(i + 1), queries.size(-2));
      torch::Tensor own = torch::zeros_like(both);
      add_gradients(*ring, window, {queries, given, inner, saved[3]}, both, of_queries, own);
      travelling = ring->end(shift, arriving);
      if (goes_on) both = travelling.narrow(0, 0, 2);
      of_both = i == 0 ? own : travelling.narrow(0, goes_on ? 2 : 0, 2).add_(own);
    }
    return {of_queries.to(queries.scalar_type()).flatten(1, 2), of_both[0], of_both[1], {}};
  }

 private:
  /// What a backward knows of the queries: themselves, the output's gradient, the sum of its products with
  /// the output, and the logarithms of the sums.
  struct Known {
    torch::Tensor queries, given, inner, log_sum;
  };

  /// Of one step. \param of_both of the keys and values `both`
  static void add_gradients(const AttentionRing& ring, const Window& window, const Known& known,
                            const torch::Tensor& both, torch::Tensor& of_queries, torch::Tensor& of_both) {
    const torch::Tensor q = window.of_queries(known.queries), given = window.of_queries(known.given);
    const torch::Tensor p =
        ring.scores(known.queries, both[0], window).sub_(window.of_queries(known.log_sum)).exp_();
    window.of_keys(of_both[1]).copy_(summed_product(p.to(q.scalar_type()), given));
    torch::Tensor of_scores = product(given, window.of_keys(both[1]).transpose(-1, -2)).to(ring.sums);
    of_scores = of_scores.sub_(window.of_queries(known.inner))
                    .mul_(p)
                    .div_(std::sqrt(static_cast<double>(q.size(-1))));
    of_scores = of_scores.to(q.scalar_type());
    window.of_keys(of_both[0]).copy_(summed_product(of_scores, q));
    window.of_queries(of_queries).add_(product(of_scores, window.of_keys(both[0])));
  }
};

}  // namespace

AttentionFunction ring_attention(const RingForm& form, const torch::TensorOptions& options) {
  const auto ring = std::make_shared<AttentionRing>();
  ring->form = form;
  if (form.causal)
    ring->future = torch::ones({form.positions, form.positions}, options.dtype(torch::kBool)).triu(1);
  const bool is_double = options.dtype() == torch::kFloat64;
  ring->sums = is_double ? torch::kFloat64 : torch::kFloat32;
  return [ring](const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v) {
    return RingAttention::apply(q, k, v, ring.get());
  };
}

}  // namespace stepcast
