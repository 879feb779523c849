#include <bit>

#include "sim/collectives/algorithm.hpp"

namespace stepcast {
namespace {

/// Rounds of the tree: ceil(log2 n).
int rounds(int ranks) { return static_cast<int>(std::bit_width(static_cast<unsigned>(ranks - 1))); }

/// A rank's number counted from root.
int from_root(const CollectiveCall& call, int rank) { return (rank - call.root + call.ranks) % call.ranks; }
int to_rank(const CollectiveCall& call, int number) { return (number + call.root) % call.ranks; }

/// The round in which a rank receives, counted from the last round, and so the number of rounds in which it
/// may send: the number of trailing zero bits of its number; root sends in all.
int sending_rounds(const CollectiveCall& call, int number) {
  return number == 0 ? rounds(call.ranks) : std::countr_zero(static_cast<unsigned>(number));
}

/// How many children a rank has: those whose number lies within the group.
int children(const CollectiveCall& call, int number) {
  int count = 0;
  for (int bit = 0; bit < sending_rounds(call, number); ++bit)
    if (number + (1 << bit) < call.ranks) ++count;
  return count;
}

int steps_of(const CollectiveCall& call, int rank) {
  if (call.ranks < 2) return 0;
  const int number = from_root(call, rank);
  return children(call, number) + (number == 0 ? 0 : 1);
}

/// A rank receives the whole array once, then passes it on to the farthest child first. A child is sent to
/// when the one before has its message; Gloo posts them together, which ends at the same time for small
/// messages and, on a shared uplink, later for large ones.
Exchange step_of(const CollectiveCall& call, int rank, int index) {
  const int number = from_root(call, rank);
  if (number != 0 && index == 0)
    return {.from = to_rank(call, number & (number - 1)), .received = call.message};
  const int child = index - (number == 0 ? 0 : 1);
  const int bit = children(call, number) - 1 - child;
  return {.to = to_rank(call, number + (1 << bit)), .sent = call.message, .after = index - 1};
}

/// Every round doubles the ranks that have the array:
///
///     T(n, S) = ceil(log2 n) * (alpha + S beta)
///
/// Source: gloo/broadcast.cc. Holds: T(1, S) = 0. T never falls when S or n grows.
Seconds time_of(const CollectiveCall& call, const LinkCost& link) {
  return rounds(call.ranks) * (link.latency + call.message / link.bandwidth);
}

Bytes sent_by(const CollectiveCall& call, int rank) {
  return call.ranks < 2 ? Bytes(0) : call.message * children(call, from_root(call, rank));
}

const Registration<Algorithm> kBinomial{
    algorithms(),
    {.name = "broadcast/binomial",
     .description = "a binomial tree: every round doubles the ranks that have the array",
     .thing = {.kind = CollectiveKind::kBroadcast,
               .steps = steps_of,
               .step = step_of,
               .time = time_of,
               .sent = sent_by,
               .copied = {}}}};

}  // namespace
}  // namespace stepcast
