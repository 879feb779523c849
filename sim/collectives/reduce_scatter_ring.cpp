#include "sim/collectives/ring.hpp"

namespace stepcast {
namespace {

int steps_of(const CollectiveCall& call, int /*rank*/) { return call.ranks - 1; }

/// A partial sum of S/n bytes travels around the ring and grows by one rank's part in each step.
Exchange step_of(const CollectiveCall& call, int rank, int index) {
  return ring_exchange(call, rank, shard(call), true, index - 1);
}

///     T(n, S) = (n - 1) alpha  +  (n - 1)/n * S * beta
///
/// Reduction arithmetic is not charged. Holds: T(1, S) = 0. T never falls when S or n grows.
Seconds time_of(const CollectiveCall& call, const LinkCost& link) {
  return lockstep_time(call.ranks - 1, shard(call), link);
}

Bytes sent_by(const CollectiveCall& call, int /*rank*/) { return shard(call) * (call.ranks - 1); }
Bytes copied_by(const CollectiveCall& call, int /*rank*/) { return shard(call); }

const Registration<Algorithm> kRing{algorithms(),
                                    {.name = "reduce_scatter/ring",
                                     .description = "partial sums travel around a ring, S/n per step",
                                     .thing = {.kind = CollectiveKind::kReduceScatter,
                                               .steps = steps_of,
                                               .step = step_of,
                                               .time = time_of,
                                               .sent = sent_by,
                                               .copied = copied_by,
                                               .ring = true}}};

}  // namespace
}  // namespace stepcast
