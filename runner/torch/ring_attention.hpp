#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <utility>
#include <vector>

#include "runner/torch/collective_functions.hpp"
#include "runner/torch/torch_model.hpp"

namespace stepcast {

/// Attention over queries, keys and values of every head, [batch, heads, positions, features].
using AttentionFunction =
    std::function<torch::Tensor(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v)>;

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

/// Position of a rank in a ring, and its collectives.
struct AttentionRing {
  /// Collective of the model, and the wait for it.
  struct Shift {
    int begin = 0, end = 0;
  };
  int rank = 0;
  bool causal = false;
  const TorchModel* model = nullptr;  ///< outlives the function
  std::vector<Shift> forward{};       ///< by step; one less than ranks
  std::vector<Shift> backward{};      ///< by step
  torch::Tensor future{};             ///< mask of later positions, if causal
  torch::ScalarType sums{};           ///< of the results of steps

  [[nodiscard]] int ranks() const { return static_cast<int>(backward.size()); }
  [[nodiscard]] int owner(int step) const { return (rank - step + 2 * ranks()) % ranks(); }
  [[nodiscard]] Window window(int owner, std::int64_t positions) const {
    const std::int64_t half = positions / 2;
    if (!causal) return {0, positions, positions};
    if (owner == rank) return {0, positions, positions, true};
    return owner < rank ? Window{0, positions, half} : Window{half, half, positions};
  }

  /// a b, where several matrices of a share one of b: [..., m, i, k] and [..., k, j] to [..., m, i, j].
  static torch::Tensor product(const torch::Tensor& a, const torch::Tensor& b) {
    return torch::matmul(a.flatten(2, 3), b).unflatten(2, {a.size(2), a.size(3)});
  }

  /// q k^T / sqrt(d) of a window.
  [[nodiscard]] torch::Tensor scores(const torch::Tensor& q, const torch::Tensor& k,
                                     const Window& window) const {
    torch::Tensor scores = product(window.of_queries(q), window.of_keys(k).transpose(-1, -2)).to(sums);
    scores = scores.div_(std::sqrt(static_cast<double>(q.size(-1))));
    return window.masked ? scores.masked_fill_(future, -std::numeric_limits<double>::infinity()) : scores;
  }
};

/// Partial result of a step: its output, and the logarithm of the sum of its exponentials.
struct AttendedPart {
  torch::Tensor output, log_sum;
};

/// Ring attention: keys and values, those of Model::positions() on every rank, rotate through a ring of c
/// ranks (Liu et al., "Ring Attention with Blockwise Transformers", 2023). Several heads of q may share one
/// of k and v.
///
/// In step i rank r attends to those of rank j = r - i mod c, o_i = softmax(q k_j^T / sqrt(d)) v_j with l_i =
/// log sum exp(q k_j^T / sqrt(d)), while it sends them on and receives the next. The result is l = log sum_i
/// exp(l_i) and o = sum_i exp(l_i - l) o_i. Causal attention uses a part of both:
///
///     j = r   the own positions, masked
///     j < r   all q, first half of k and v
///     j > r   second half of q, all k and v
///
/// The backward recomputes probabilities p = exp(q k_j^T / sqrt(d) - l) with j = r - 1 - i, so that the own
/// keys and values come last. Gradients of those of step i are sent in step i + 1 to the rank that adds its
/// part next, and arrive at their owner with the last step. Saved: q, the k and v of rank r - 1, o, and l.
/// Whatever the dtype, o and l are summed in float32, or in float64.
///
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
      torch::Tensor next = goes_on ? ring->model->collective(ring->forward[i].begin, both) : torch::Tensor();
      const Window window = ring->window(ring->owner(i), q.size(2));
      AttendedPart part = part_of(*ring, queries, both, window);
      if (i == 0)
        whole = std::move(part);
      else
        add(part, window, whole);
      if (goes_on) both = ring->model->collective(ring->forward[i].end, next);
      if (i == 0) kept = both;
    }
    torch::Tensor output = whole.output.to(q.scalar_type()).flatten(1, 2).transpose(1, 2).flatten(2);
    // NOLINTNEXTLINE: saved_data holds no pointers
    context->saved_data["ring"] = reinterpret_cast<std::int64_t>(ring);
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
      const AttentionRing::Shift& shift = ring->backward[i];
      const bool goes_on = i + 1 < ring->ranks();
      if (i == 0)
        travelling = both;
      else if (!goes_on)
        travelling = of_both;
      else if (i == 1)
        travelling = torch::cat({both, of_both});
      const torch::Tensor arriving = ring->model->collective(shift.begin, travelling);
      const Window window = ring->window(ring->owner(i + 1), queries.size(-2));
      torch::Tensor own = torch::zeros_like(both);
      add_gradients(*ring, window, {queries, given, inner, saved[3]}, both, of_queries, own);
      travelling = ring->model->collective(shift.end, arriving);
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

  /// Groups the heads that share a key: [batch, kv_heads, heads / kv_heads, positions, features].
  static torch::Tensor by_key(const torch::Tensor& q, std::int64_t kv_heads) {
    return q.unflatten(1, {kv_heads, -1});
  }

  /// The sum over m of a^T b: [..., m, i, j] and [..., m, i, k] to [..., j, k].
  static torch::Tensor summed_product(const torch::Tensor& a, const torch::Tensor& b) {
    return torch::matmul(a.flatten(2, 3).transpose(-1, -2), b.flatten(2, 3));
  }

  static AttendedPart part_of(const AttentionRing& ring, const torch::Tensor& q, const torch::Tensor& both,
                              const Window& window) {
    torch::Tensor scores = ring.scores(q, both[0], window), log_sum = scores.logsumexp(-1, true);
    const torch::Tensor probabilities = scores.sub_(log_sum).exp_().to(q.scalar_type());
    return {AttentionRing::product(probabilities, window.of_keys(both[1])).to(ring.sums), std::move(log_sum)};
  }

  /// Adds a part to the result of the positions of the window.
  static void add(const AttendedPart& part, const Window& window, AttendedPart& whole) {
    torch::Tensor output = window.of_queries(whole.output), log_sum = window.of_queries(whole.log_sum);
    const torch::Tensor both = torch::logaddexp(log_sum, part.log_sum);
    output.mul_(log_sum.sub(both).exp_()).add_(part.output.mul(part.log_sum.sub(both).exp_()));
    log_sum.copy_(both);
  }

  /// Of one step. \param of_both of the keys and values `both`
  static void add_gradients(const AttentionRing& ring, const Window& window, const Known& known,
                            const torch::Tensor& both, torch::Tensor& of_queries, torch::Tensor& of_both) {
    const torch::Tensor q = window.of_queries(known.queries), given = window.of_queries(known.given);
    const torch::Tensor p =
        ring.scores(known.queries, both[0], window).sub_(window.of_queries(known.log_sum)).exp_();
    window.of_keys(of_both[1]).copy_(summed_product(p.to(q.scalar_type()), given));
    torch::Tensor of_scores =
        AttentionRing::product(given, window.of_keys(both[1]).transpose(-1, -2)).to(ring.sums);
    of_scores = of_scores.sub_(window.of_queries(known.inner))
                    .mul_(p)
                    .div_(std::sqrt(static_cast<double>(q.size(-1))));
    of_scores = of_scores.to(q.scalar_type());
    window.of_keys(of_both[0]).copy_(summed_product(of_scores, q));
    window.of_queries(of_queries).add_(AttentionRing::product(of_scores, window.of_keys(both[0])));
  }
};

}  // namespace stepcast
