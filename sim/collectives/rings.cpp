#include "sim/collectives/blocks.hpp"
#include "sim/collectives/nccl_tuning.hpp"

namespace stepcast::rings_collective {
namespace {

/// In a ring every rank sends to its successor and receives from its predecessor, S/n per round step. A step
/// that moves bytes over every link at once and waits for the one before takes alpha + bytes * beta, whatever
/// the ring is for; with n - 1 steps per round
///
///     T(n, S) = rounds (n - 1) alpha  +  rounds (n - 1)/n * S * beta
///
/// In step k a rank sends the k-th block counted backwards from its own. Reduction arithmetic is not charged.
/// Holds: T(1, S) = 0. T never falls when S or n grows. busbw -> bandwidth as S -> inf.
/// \pre n >= 1, S >= 0 B, bandwidth > 0 B/s
struct Ring {
  CollectiveKind kind;
  int rounds = 1;    ///< in which every block passes all ranks but one
  int reducing = 0;  ///< of them, those that add up what arrives; they come first
  /// Equal parts of a block that are in flight together: step k is posted when step k - parts is over. They
  /// share a link and pay one latency together, so a round takes what it takes unsplit.
  int parts = 1;
  int first = 0;  ///< blocks between a rank's own and the one that it sends first

  [[nodiscard]] int round_steps(const CollectiveCall& call) const { return rounds * (call.ranks - 1); }

  [[nodiscard]] Exchange step(const CollectiveCall& call, int rank, int index) const {
    const int k = parts == 1 ? index : index / parts;
    const Bytes part = shard(call) / static_cast<double>(parts);
    const Bytes into = part * (index - k * parts);
    const int block = rank - first - k;
    return {.to = rank_at(call, rank + 1),
            .sent = part,
            .sent_at = block_at(call, block) + into,
            .from = rank_at(call, rank - 1),
            .received = part,
            .received_at = block_at(call, block - 1) + into,
            .reduce = index < reducing * (call.ranks - 1),
            .after = index < parts ? -1 : index - parts};
  }
};

Algorithm algorithm_of(const Ring& ring) {
  Algorithm algorithm;
  algorithm.kind = ring.kind;
  algorithm.backends = algorithm.default_of = kEveryBackend;
  algorithm.steps = [ring](const CollectiveCall& call, int) { return ring.parts * ring.round_steps(call); };
  algorithm.step = [ring](const CollectiveCall& call, int rank, int index) {
    return ring.step(call, rank, index);
  };
  algorithm.time = [ring](const CollectiveCall& call, const LinkCost& link) {
    return ring.round_steps(call) * (link.latency + shard(call) / link.bandwidth);
  };
  algorithm.sent = [ring](const CollectiveCall& call, int) { return shard(call) * ring.round_steps(call); };
  algorithm.copied = own_shard;
  algorithm.nccl = NcclAlgorithm::kRing;
  algorithm.ring = true;
  return algorithm;
}

/// A reduce-scatter and an all-gather, in place; Gloo has one of its own. Source: Patarasuk & Yuan, JPDC
/// 2009.
Algorithm all_reduce() {
  Algorithm algorithm = algorithm_of({.kind = CollectiveKind::kAllReduce, .rounds = 2, .reducing = 1});
  algorithm.default_of = {""};
  algorithm.copied = nullptr;
  return algorithm;
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
  const Bytes size = shard(call) * (call.ranks - 1 - index);
  const Bytes at = block_at(call, index + 1);
  return {.to = rank_at(call, rank + 1),
          .sent = size,
          .sent_at = at,
          .from = rank_at(call, rank - 1),
          .received = size,
          .received_at = at,
          .after = index - 1};
}
int one_round(const CollectiveCall& call, int /*rank*/) { return call.ranks - 1; }
Bytes all_to_all_sent(const CollectiveCall& call, int /*rank*/) {
  return call.message * (call.ranks - 1) / 2;
}
Seconds all_to_all_time(const CollectiveCall& call, const LinkCost& link) {
  return (call.ranks - 1) * link.latency + all_to_all_sent(call, 0) / link.bandwidth;
}

const AlgorithmEntry kAllReduceRing("all_reduce/ring",
                                    "reduce-scatter and all-gather around a ring, S/n per step",
                                    all_reduce());

const AlgorithmEntry kReduceScatterRing(
    "reduce_scatter/ring", "partial sums travel around a ring, S/n per step",
    algorithm_of({.kind = CollectiveKind::kReduceScatter, .reducing = 1, .first = 1}));

/// Source: gloo/allgather.cc.
const AlgorithmEntry kAllGatherRing("all_gather/ring", "every part travels around a ring, in two halves",
                                    algorithm_of({.kind = CollectiveKind::kAllGather, .parts = 2}));

const AlgorithmEntry kAllToAllRing("all_to_all/ring",
                                   "blocks are passed from neighbour to neighbour until they arrive",
                                   {CollectiveKind::kAllToAll, kMessageBackends, kOnRequest, one_round,
                                    all_to_all_step, all_to_all_time, all_to_all_sent, own_shard,
                                    std::nullopt, true});

}  // namespace
}  // namespace stepcast::rings_collective
