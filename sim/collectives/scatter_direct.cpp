#include "sim/collectives/algorithm.hpp"

namespace stepcast {
namespace {

/// Index among the n - 1 other ranks → rank.
int other(int root, int index) { return index < root ? index : index + 1; }

int steps_of(const CollectiveCall& call, int rank) { return rank == call.root ? call.ranks - 1 : 1; }

/// Root sends every rank its part, all at once.
Exchange step_of(const CollectiveCall& call, int rank, int index) {
  const Bytes part = call.message / call.ranks;
  if (rank == call.root) return {.to = other(call.root, index), .sent = part};
  return {.from = call.root, .received = part};
}

/// All parts share root's link:
///
///     T(n, S) = alpha + (n - 1)/n * S * beta,  T(1, S) = 0
///
/// Source: gloo/scatter.cc.
Seconds time_of(const CollectiveCall& call, const LinkCost& link) {
  if (call.ranks < 2) return Seconds{0};
  return link.latency + call.message * (call.ranks - 1) / call.ranks / link.bandwidth;
}

Bytes sent_by(const CollectiveCall& call, int rank) {
  return rank == call.root ? call.message * (call.ranks - 1) / call.ranks : Bytes(0);
}
Bytes copied_by(const CollectiveCall& call, int rank) {
  return rank == call.root ? call.message / call.ranks : Bytes(0);
}

const Registration<Algorithm> kDirect{algorithms(),
                                      {.name = "scatter/direct",
                                       .description = "root sends every rank its part",
                                       .thing = {.kind = CollectiveKind::kScatter,
                                                 .steps = steps_of,
                                                 .step = step_of,
                                                 .time = time_of,
                                                 .sent = sent_by,
                                                 .copied = copied_by}}};

}  // namespace
}  // namespace stepcast
