#include "sim/collectives/ring.hpp"

namespace stepcast {
namespace {

int steps_of(const CollectiveCall& call, int /*rank*/) { return 2 * (call.ranks - 1); }

/// Every rank's part travels around the ring in two halves that are in flight together: step k is posted when
/// step k - 2 is over. Source: gloo/allgather.cc.
Exchange step_of(const CollectiveCall& call, int rank, int index) {
  return ring_exchange(call, rank, shard(call) / 2.0, false, index < 2 ? -1 : index - 2);
}

/// Two halves share a link and pay one latency together:
///
///     T(n, S) = (n - 1) alpha  +  (n - 1)/n * S * beta
///
/// Holds: T(1, S) = 0. T never falls when S or n grows.
Seconds time_of(const CollectiveCall& call, const LinkCost& link) {
  return lockstep_time(call.ranks - 1, shard(call), link);
}

Bytes sent_by(const CollectiveCall& call, int /*rank*/) { return shard(call) * (call.ranks - 1); }
Bytes copied_by(const CollectiveCall& call, int /*rank*/) { return shard(call); }

const Registration<Algorithm> kRing{algorithms(),
                                    {.name = "all_gather/ring",
                                     .description = "every part travels around a ring, in two halves",
                                     .thing = {.kind = CollectiveKind::kAllGather,
                                               .steps = steps_of,
                                               .step = step_of,
                                               .time = time_of,
                                               .sent = sent_by,
                                               .copied = copied_by,
                                               .ring = true}}};

}  // namespace
}  // namespace stepcast
