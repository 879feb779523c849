#include <bit>

#include "sim/collectives/blocks.hpp"

namespace stepcast::binomial_collective {
namespace {

/// Rounds of the tree: ceil(log2 n); a rank that is number v, counted from root, has the array after round
/// ceil(log2 (v + 1)).
int rounds(int number) { return static_cast<int>(std::bit_width(static_cast<unsigned>(number))); }

int from_root(const CollectiveCall& call, int rank) { return rank_at(call, rank - call.root); }

/// Number of ranks that a rank sends to. In round i they lie 2^i further, as many as ranks have the array,
/// and within the group.
int children(const CollectiveCall& call, int rank) {
  const int number = from_root(call, rank);
  int count = 0;
  for (int reach = 1 << rounds(number); number + reach < call.ranks; reach *= 2) ++count;
  return count;
}

int steps_of(const CollectiveCall& call, int rank) {
  return children(call, rank) + (rank == call.root ? 0 : 1);
}

/// A rank receives the whole array once, then passes it on. In round i number v < 2^i sends to v + 2^i. It
/// goes on when the message before has arrived; Gloo posts them together, which ends at the same time for
/// small messages and, on a shared uplink, later for large ones. Source: gloo/broadcast.cc.
Exchange step_of(const CollectiveCall& call, int rank, int index) {
  const int number = from_root(call, rank);
  if (number != 0 && index == 0) {
    const int parent = number ^ (1 << (rounds(number) - 1));
    return {.from = rank_at(call, parent + call.root), .received = call.message};
  }
  const int round = rounds(number) + index - (number == 0 ? 0 : 1);
  return {.to = rank_at(call, number + (1 << round) + call.root), .sent = call.message, .after = index - 1};
}

/// Every round doubles the ranks that have the array:
///
///     T(n, S) = ceil(log2 n) * (alpha + S beta)
///
/// Holds: T(1, S) = 0. T never falls when S or n grows.
Seconds time_of(const CollectiveCall& call, const LinkCost& link) {
  return rounds(call.ranks - 1) * (link.latency + call.message / link.bandwidth);
}

Bytes sent_by(const CollectiveCall& call, int rank) { return call.message * children(call, rank); }

const AlgorithmEntry kBinomial("broadcast/binomial",
                               "a binomial tree: every round doubles the ranks that have the array",
                               {CollectiveKind::kBroadcast, kMessageBackends, kMessageBackends, steps_of,
                                step_of, time_of, sent_by});

}  // namespace
}  // namespace stepcast::binomial_collective
