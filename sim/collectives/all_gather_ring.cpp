#include "sim/collectives/ring.hpp"

namespace stepcast {
namespace {

int steps_of(const CollectiveCall& call, int /*rank*/) { return 2 * (call.ranks - 1); }

/// Every rank's part travels around the ring in two halves that are in flight together: step k is posted when
/// step k - 2 is over. Two halves share a link and pay one latency together, so a round takes what it takes
/// unsplit. Source: gloo/allgather.cc.
Exchange step_of(const CollectiveCall& call, int rank, int index) {
  return ring_exchange(call, rank, shard(call) / 2.0, false, index < 2 ? -1 : index - 2);
}

const Registration<Algorithm> kRing{algorithms(),
                                    {.name = "all_gather/ring",
                                     .description = "every part travels around a ring, in two halves",
                                     .thing = {.kind = CollectiveKind::kAllGather,
                                               .steps = steps_of,
                                               .step = step_of,
                                               .time = round_time,
                                               .sent = round_sent,
                                               .copied = own_shard,
                                               .ring = true}}};

}  // namespace
}  // namespace stepcast
