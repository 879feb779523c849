#include "sim/collectives/ring.hpp"

namespace stepcast {
namespace {

int steps_of(const CollectiveCall& call, int /*rank*/) { return 2 * (call.ranks - 1); }

/// Ideal ring all-reduce: a reduce-scatter and an all-gather of n - 1 steps each; a step moves S/n bytes over
/// every link at once and starts when the step before is over.
Exchange step_of(const CollectiveCall& call, int rank, int index) {
  return ring_exchange(call, rank, shard(call), index < call.ranks - 1, index - 1);
}

/// Time of a ring all-reduce over n ranks joined by equal links.
///
///     T(n, S) = 2 (n - 1) alpha  +  2 (n - 1)/n * S * beta
///
/// Reduction arithmetic is not charged. Source: Patarasuk & Yuan, JPDC 2009.
/// Holds: T(1, S) = 0. T never falls when S or n grows. busbw -> bandwidth as S -> inf.
/// \pre n >= 1, S >= 0 B, bandwidth > 0 B/s
Seconds time_of(const CollectiveCall& call, const LinkCost& link) {
  return lockstep_time(steps_of(call, 0), shard(call), link);
}

Bytes sent_by(const CollectiveCall& call, int rank) { return shard(call) * steps_of(call, rank); }

const Registration<Algorithm> kRing{
    algorithms(),
    {.name = "all_reduce/ring",
     .description = "reduce-scatter and all-gather around a ring, S/n per step",
     .thing = {.kind = CollectiveKind::kAllReduce,
               .steps = steps_of,
               .step = step_of,
               .time = time_of,
               .sent = sent_by,
               .copied = {},
               .ring = true}}};

}  // namespace
}  // namespace stepcast
