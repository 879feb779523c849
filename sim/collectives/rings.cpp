#include "sim/collectives/blocks.hpp"
#include "sim/collectives/nccl_tuning.hpp"

namespace stepcast {
namespace {

/// In a ring every rank sends to its successor and receives from its predecessor. A step that moves `bytes`
/// over every link at once and waits for the one before takes alpha + bytes * beta, whatever the ring is for.
struct RingStep {
  Bytes bytes;
  Bytes sent_at, received_at;
  bool reduce = false;
  int after = -1;
};

Exchange ring_exchange(const CollectiveCall& call, int rank, const RingStep& step) {
  return {.to = rank_at(call, rank + 1),
          .sent = step.bytes,
          .sent_at = step.sent_at,
          .from = rank_at(call, rank - 1),
          .received = step.bytes,
          .received_at = step.received_at,
          .reduce = step.reduce,
          .after = step.after};
}

int two_rounds(const CollectiveCall& call, int /*rank*/) { return 2 * (call.ranks - 1); }

/// T = steps * (alpha + S/n * beta).
Seconds lockstep_time(int steps, const CollectiveCall& call, const LinkCost& link) {
  return steps * (link.latency + shard(call) / link.bandwidth);
}

/// One round: every block passes all ranks but one.
///
///     T(n, S) = (n - 1) alpha  +  (n - 1)/n * S * beta
///
/// Holds: T(1, S) = 0. T never falls when S or n grows.
Seconds round_time(const CollectiveCall& call, const LinkCost& link) {
  return lockstep_time(call.ranks - 1, call, link);
}
Bytes round_sent(const CollectiveCall& call, int /*rank*/) { return shard(call) * (call.ranks - 1); }

/// A reduce-scatter and an all-gather of n - 1 steps each: a step moves S/n over every link and starts when
/// the step before is over. In step k a rank sends the k-th block counted backwards from its own.
///
///     T(n, S) = 2 (n - 1) alpha  +  2 (n - 1)/n * S * beta
///
/// Reduction arithmetic is not charged. Source: Patarasuk & Yuan, JPDC 2009.
/// Holds: T(1, S) = 0. T never falls when S or n grows. busbw -> bandwidth as S -> inf.
/// \pre n >= 1, S >= 0 B, bandwidth > 0 B/s
Exchange all_reduce_step(const CollectiveCall& call, int rank, int index) {
  const bool reduce = index < call.ranks - 1;
  const int block = reduce ? rank - index : rank + call.ranks - index;
  return ring_exchange(call, rank,
                       {shard(call), block_at(call, block), block_at(call, block - 1), reduce, index - 1});
}
Seconds all_reduce_time(const CollectiveCall& call, const LinkCost& link) {
  return lockstep_time(two_rounds(call, 0), call, link);
}
Bytes all_reduce_sent(const CollectiveCall& call, int rank) { return shard(call) * two_rounds(call, rank); }

/// A partial sum of S/n bytes travels around the ring and grows by one rank's part in each step.
/// Reduction arithmetic is not charged in the closed form.
Exchange reduce_scatter_step(const CollectiveCall& call, int rank, int index) {
  const int block = rank - 1 - index;
  return ring_exchange(call, rank,
                       {shard(call), block_at(call, block), block_at(call, block - 1), true, index - 1});
}

/// Every rank's part travels around the ring in two halves that are in flight together: step k is posted when
/// step k - 2 is over. Two halves share a link and pay one latency together, so a round takes what it takes
/// unsplit. Source: gloo/allgather.cc.
Exchange all_gather_step(const CollectiveCall& call, int rank, int index) {
  const Bytes half = shard(call) / 2.0;
  const Bytes into = half * (index % 2);
  const int block = rank - index / 2;
  return ring_exchange(call, rank,
                       {half, block_at(call, block) + into, block_at(call, block - 1) + into, false,
                        index < 2 ? -1 : index - 2});
}

/// Blocks for ranks further on are passed from neighbour to neighbour: in step k every rank sends the n - k
/// blocks that have not arrived.
///
///     T(n, S) = (n - 1) alpha  +  (n - 1)/2 * S * beta                       bytes sent: (n - 1)/2 S
///
/// Moves n/2 times the bytes of pairwise exchange, but only between neighbours, and in long messages.
/// Source: Thakur, Rabenseifner & Gropp, IJHPCA 2005, section 4.4, of the algorithms for neighbours alone.
/// Holds: T(1, S) = 0. T never falls when S or n grows.
Exchange all_to_all_step(const CollectiveCall& call, int rank, int index) {
  const Bytes at = block_at(call, index + 1);
  return ring_exchange(call, rank, {shard(call) * (call.ranks - 1 - index), at, at, false, index - 1});
}
int one_round(const CollectiveCall& call, int /*rank*/) { return call.ranks - 1; }
Bytes all_to_all_sent(const CollectiveCall& call, int /*rank*/) {
  return call.message * (call.ranks - 1) / 2;
}
Seconds all_to_all_time(const CollectiveCall& call, const LinkCost& link) {
  return (call.ranks - 1) * link.latency + all_to_all_sent(call, 0) / link.bandwidth;
}

const Registration<Algorithm> kAllReduceRing{algorithms(),
                                             {"all_reduce/ring",
                                              "reduce-scatter and all-gather around a ring, S/n per step",
                                              {CollectiveKind::kAllReduce,
                                               kEveryBackend,
                                               {""},
                                               two_rounds,
                                               all_reduce_step,
                                               all_reduce_time,
                                               all_reduce_sent,
                                               {},
                                               NcclAlgorithm::kRing,
                                               true}}};

const Registration<Algorithm> kReduceScatterRing{
    algorithms(),
    {"reduce_scatter/ring",
     "partial sums travel around a ring, S/n per step",
     {CollectiveKind::kReduceScatter, kEveryBackend, kEveryBackend, one_round, reduce_scatter_step,
      round_time, round_sent, own_shard, NcclAlgorithm::kRing, true}}};

const Registration<Algorithm> kAllGatherRing{
    algorithms(),
    {"all_gather/ring",
     "every part travels around a ring, in two halves",
     {CollectiveKind::kAllGather, kEveryBackend, kEveryBackend, two_rounds, all_gather_step, round_time,
      round_sent, own_shard, NcclAlgorithm::kRing, true}}};

const Registration<Algorithm> kAllToAllRing{
    algorithms(),
    {"all_to_all/ring",
     "blocks are passed from neighbour to neighbour until they arrive",
     {CollectiveKind::kAllToAll,
      kMessageBackends,
      {},
      one_round,
      all_to_all_step,
      all_to_all_time,
      all_to_all_sent,
      own_shard,
      {},
      true}}};

}  // namespace
}  // namespace stepcast
