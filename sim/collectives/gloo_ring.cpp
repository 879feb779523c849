#include <algorithm>
#include <cmath>

#include "sim/collectives/blocks.hpp"

namespace stepcast::gloo_ring_collective {
namespace {

/// Gloo cuts the array into equal segments of at most 1 MiB, and into at least two for every rank.
///
///     segments = round up to a multiple of n of max(ceil(S / 1 MiB), 2 n)
///     segment  = ceil(S / segments), rounded up to whole elements
///
/// The last segments of a short array are shorter or empty. Source: gloo/allreduce.cc, `ring`.
struct Segments {
  explicit Segments(const CollectiveCall& call)
      : message(call.message.count()), element(call.element_bytes), ranks(call.ranks) {
    const double wanted = std::max(std::ceil(message / kMebi), 2.0 * ranks);
    per_rank = static_cast<int>(std::ceil(wanted / ranks));
    const double exact = std::ceil(message / (static_cast<double>(per_rank) * ranks));
    segment = std::ceil(exact / element) * element;
  }

  /// Position of segment `index`, counted around the ring.
  [[nodiscard]] Bytes at(int index) const {
    const int count = per_rank * ranks;
    return Bytes(std::min(message, ((index % count) + count) % count * segment));
  }
  [[nodiscard]] Bytes size(int index) const {
    return Bytes(std::clamp(message - at(index).count(), 0.0, segment));
  }
  /// Bytes of the segments that rank `owner` reduces.
  [[nodiscard]] Bytes block(int owner) const {
    const double whole = per_rank * segment;
    return Bytes(std::clamp(message - (owner % ranks) * whole, 0.0, whole));
  }
  /// Segment steps of one phase.
  [[nodiscard]] int steps() const { return per_rank * (ranks - 1); }

  double message, element;
  int ranks;
  int per_rank = 2;
  double segment = 0.0;
};

const std::vector<std::string> kGloo{"gloo"};

int steps_of(const CollectiveCall& call, int /*rank*/) {
  return call.ranks < 2 ? 0 : 2 * Segments(call).steps();
}

/// Two segments are in flight: step k is posted when step k - 2 is over. The phases are not fused: the
/// all-gather starts when the rank's own reduce-scatter is over. In step k of the reduce-scatter rank r sends
/// the k-th segment counted backwards by ranks from its own; in the all-gather it passes on what it received
/// or finished last.
Exchange step_of(const CollectiveCall& call, int rank, int index) {
  const Segments segments(call);
  const int steps = segments.steps();
  const bool reducing = index < steps;
  const int k = reducing ? index : index - steps;
  const int first = (reducing ? rank : rank + 1) - k / segments.per_rank;
  const int sent = first * segments.per_rank + k % segments.per_rank;
  const int received = sent - segments.per_rank;
  return {.to = rank_at(call, rank + 1),
          .sent = segments.size(sent),
          .sent_at = segments.at(sent),
          .from = rank_at(call, rank - 1),
          .received = segments.size(received),
          .received_at = segments.at(received),
          .reduce = reducing,
          .after = k < 2 ? (reducing ? -1 : steps - 1) : index - 2};
}

/// With two equal segments in flight per link the link never waits for more than one latency per pair:
///
///     T(n, S) = 2 * ceil(s (n - 1) / 2) * alpha  +  2 (n - 1)/n * S * beta        s: segments per rank, >= 2
///
/// Reduction arithmetic and the endpoints' cost per segment are not charged; the replay charges them from the
/// calibration. Exact when S is a multiple of the segments. Source: gloo/allreduce.cc.
/// Holds: T(1, S) = 0. Never below the ideal ring's.
Seconds time_of(const CollectiveCall& call, const LinkCost& link) {
  if (call.ranks < 2) return Seconds{0};
  const Segments segments(call);
  const int pairs = (segments.steps() + 1) / 2;
  return 2.0 * pairs * link.latency + 2.0 * segments.steps() * Bytes(segments.segment) / link.bandwidth;
}

/// In each phase a rank sends all blocks but one: S - block(r + 1) in the reduce-scatter, S - block(r + 2) in
/// the all-gather. Equal blocks make that 2 (n - 1)/n S.
Bytes sent_by(const CollectiveCall& call, int rank) {
  if (call.ranks < 2) return Bytes(0);
  const Segments segments(call);
  return 2.0 * call.message - segments.block(rank + 1) - segments.block(rank + 2);
}

const AlgorithmEntry kGlooRing("all_reduce/gloo_ring",
                               "a ring as Gloo does it: segments of at most 1 MiB, two in flight",
                               {CollectiveKind::kAllReduce, kMessageBackends, kGloo, steps_of, step_of,
                                time_of, sent_by, nullptr, std::nullopt, true});

}  // namespace
}  // namespace stepcast::gloo_ring_collective
