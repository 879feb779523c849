#include <bit>
#include <cmath>

#include "sim/collectives/blocks.hpp"

namespace stepcast::halving_doubling_collective {
namespace {

/// A power of two p of the ranks halves and doubles. Of the e = n - p others each gives its whole array to a
/// neighbour at the beginning and takes the result from it at the end: of the first 2 e ranks, the even ones
/// to the odd ones.
struct Folded {
  explicit Folded(const CollectiveCall& call)
      : power(static_cast<int>(std::bit_floor(static_cast<unsigned>(call.ranks)))),
        extra(call.ranks - power),
        rounds(std::countr_zero(static_cast<unsigned>(power))) {}

  [[nodiscard]] bool gives(int rank) const { return rank < 2 * extra && rank % 2 == 0; }
  [[nodiscard]] bool takes(int rank) const { return rank < 2 * extra && rank % 2 == 1; }
  /// A rank's number among the p, and back.
  [[nodiscard]] int number(int rank) const { return rank < 2 * extra ? rank / 2 : rank - extra; }
  [[nodiscard]] int rank(int number) const { return number < extra ? 2 * number + 1 : number + extra; }

  int power, extra, rounds;
};

int steps_of(const CollectiveCall& call, int rank) {
  const Folded folded(call);
  return folded.gives(rank) ? 2 : 2 * folded.rounds + (folded.takes(rank) ? 2 : 0);
}

/// Step k of the p ranks: recursive halving, where in round i a rank and the one p/2^(i + 1) away each keep
/// one half of what they have and give the other away; then the same backwards, recursive doubling.
Exchange halve_or_double(const CollectiveCall& call, const Folded& folded, int rank, int k) {
  const bool halving = k < folded.rounds;
  const int bit = halving ? folded.rounds - 1 - k : k - folded.rounds;
  const int number = folded.number(rank);
  const Bytes part = call.message / std::ldexp(1.0, folded.rounds - bit);
  const Bytes own = part * (number >> bit);
  const Bytes others = part * ((number >> bit) ^ 1);
  const int peer = folded.rank(number ^ (1 << bit));
  return {.to = peer,
          .sent = part,
          .sent_at = halving ? others : own,
          .from = peer,
          .received = part,
          .received_at = halving ? own : others,
          .reduce = halving};
}

Exchange step_of(const CollectiveCall& call, int rank, int index) {
  const Folded folded(call);
  const Exchange give{.to = folded.takes(rank) ? rank - 1 : rank + 1, .sent = call.message};
  const Exchange take{.from = give.to, .received = call.message, .reduce = folded.takes(rank)};
  Exchange step;
  if (folded.gives(rank))
    step = index == 0 ? give : take;
  else if (folded.takes(rank) && index == 0)
    step = take;
  else if (folded.takes(rank) && index == 2 * folded.rounds + 1)
    step = give;
  else
    step = halve_or_double(call, folded, rank, index - (folded.takes(rank) ? 1 : 0));
  step.after = index - 1;
  return step;
}

/// With p the power of two at or below n:
///
///     T(n, S) = 2 log2(p) alpha  +  2 (p - 1)/p * S * beta  +  [p < n] 2 (alpha + S beta)
///
/// As few bytes as a ring where n is a power of two, in 2 log2 n messages instead of 2 (n - 1). Reduction
/// arithmetic is not charged. Source: Rabenseifner's algorithm as Thakur, Rabenseifner & Gropp, IJHPCA 2005,
/// describe it, with whole arrays folded in as MPICH does.
/// Holds: T(1, S) = 0; T never falls when S grows, nor with n among powers of two.
Seconds time_of(const CollectiveCall& call, const LinkCost& link) {
  const Folded folded(call);
  const double p = folded.power;
  Seconds time = 2.0 * folded.rounds * link.latency + 2.0 * (p - 1.0) / p * call.message / link.bandwidth;
  if (folded.extra > 0) time += 2.0 * (link.latency + call.message / link.bandwidth);
  return time;
}

/// S of a rank that is folded in, else 2 (p - 1)/p S, and S for the neighbour.
Bytes sent_by(const CollectiveCall& call, int rank) {
  const Folded folded(call);
  const double p = folded.power;
  if (folded.gives(rank)) return call.message;
  return call.message * (2.0 * (p - 1.0) / p + (folded.takes(rank) ? 1.0 : 0.0));
}

const AlgorithmEntry kHalvingDoubling(
    "all_reduce/halving_doubling",
    "recursive halving, then doubling: few messages; others than 2^k ranks fold in",
    {CollectiveKind::kAllReduce, kMessageBackends, kOnRequest, steps_of, step_of, time_of, sent_by});

}  // namespace
}  // namespace stepcast::halving_doubling_collective
