#include "sim/collectives/ring.hpp"

namespace stepcast {
namespace {

int steps_of(const CollectiveCall& call, int /*rank*/) { return call.ranks - 1; }

/// A partial sum of S/n bytes travels around the ring and grows by one rank's part in each step.
/// Reduction arithmetic is not charged in the closed form.
Exchange step_of(const CollectiveCall& call, int rank, int index) {
  return ring_exchange(call, rank, shard(call), true, index - 1);
}

const Registration<Algorithm> kRing{algorithms(),
                                    {.name = "reduce_scatter/ring",
                                     .description = "partial sums travel around a ring, S/n per step",
                                     .thing = {.kind = CollectiveKind::kReduceScatter,
                                               .steps = steps_of,
                                               .step = step_of,
                                               .time = round_time,
                                               .sent = round_sent,
                                               .copied = own_shard,
                                               .ring = true}}};

}  // namespace
}  // namespace stepcast
