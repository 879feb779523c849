#include <utility>

#include "sim/collectives/blocks.hpp"

/// Algorithms whose blocks go straight from where they are to where they belong.
namespace stepcast::direct_collective {
namespace {

/// All parts share one rank's link:
///
///     T(n, S) = alpha + (n - 1)/n * S * beta,  T(1, S) = 0
///
/// Holds: T never falls when S or n grows. Source: gloo/gather.cc, gloo/scatter.cc, gloo/alltoall.cc.
Seconds at_once_time(const CollectiveCall& call, const LinkCost& link) {
  if (call.ranks < 2) return Seconds{0};
  return link.latency + call.message * (call.ranks - 1) / call.ranks / link.bandwidth;
}

bool is_root(const CollectiveCall& call, int rank) { return rank == call.root; }
int steps_of_root(const CollectiveCall& call, int rank) { return is_root(call, rank) ? call.ranks - 1 : 1; }
Bytes copied_by_root(const CollectiveCall& call, int rank) {
  return is_root(call, rank) ? shard(call) : Bytes(0);
}

/// Every rank sends its part to root; root has posted all receives at once.
Exchange gather_step(const CollectiveCall& call, int rank, int index) {
  if (!is_root(call, rank)) return {.to = call.root, .sent = shard(call), .sent_at = block_at(call, rank)};
  const int peer = index < rank ? index : index + 1;
  return {.from = peer, .received = shard(call), .received_at = block_at(call, peer)};
}
Bytes gather_sent(const CollectiveCall& call, int rank) {
  return is_root(call, rank) ? Bytes(0) : shard(call);
}

/// Root sends every rank its part, all at once: a gather backwards.
Exchange scatter_step(const CollectiveCall& call, int rank, int index) {
  Exchange step = gather_step(call, rank, index);
  std::swap(step.to, step.from);
  std::swap(step.sent, step.received);
  std::swap(step.sent_at, step.received_at);
  return step;
}
Bytes scatter_sent(const CollectiveCall& call, int rank) {
  return is_root(call, rank) ? call.message * (call.ranks - 1) / call.ranks : Bytes(0);
}

int other_ranks(const CollectiveCall& call, int /*rank*/) { return call.ranks - 1; }
Bytes all_but_own(const CollectiveCall& call, int /*rank*/) { return shard(call) * (call.ranks - 1); }

/// In step k rank r sends a block to rank r + k and receives one from rank r - k: each link carries one
/// message each way at a time.
///
///     T(n, S) = (n - 1) alpha  +  (n - 1)/n * S * beta
///
/// Source: Thakur, Rabenseifner & Gropp, IJHPCA 2005, section 4.4, long messages.
/// Holds: T(1, S) = 0. T never falls when S or n grows.
Exchange pairwise_step(const CollectiveCall& call, int rank, int index) {
  const int distance = index + 1;
  const Bytes at = block_at(call, distance);
  return {.to = rank_at(call, rank + distance),
          .sent = shard(call),
          .sent_at = at,
          .from = rank_at(call, rank - distance),
          .received = shard(call),
          .received_at = at,
          .after = index - 1};
}
Seconds pairwise_time(const CollectiveCall& call, const LinkCost& link) {
  return (call.ranks - 1) * (link.latency + shard(call) / link.bandwidth);
}

/// The same messages, all posted at once: as Gloo does it, and NCCL's grouped sends and receives.
Exchange all_to_all_step(const CollectiveCall& call, int rank, int index) {
  Exchange step = pairwise_step(call, rank, index);
  step.after = -1;
  return step;
}

/// Around a ring, every rank sends its successor all that it has:
///
///     T(n, S) = alpha + S * beta,  T(1, S) = 0
///
/// Holds: T never falls when S grows, and is the same for all n > 1. Source: nccl-tests, sendrecv.cu.
int one_step(const CollectiveCall& call, int /*rank*/) { return call.ranks > 1 ? 1 : 0; }
Exchange shift_step(const CollectiveCall& call, int rank, int /*index*/) {
  return {.to = rank_at(call, rank + 1),
          .sent = call.message,
          .from = rank_at(call, rank - 1),
          .received = call.message};
}
Seconds shift_time(const CollectiveCall& call, const LinkCost& link) {
  return one_step(call, 0) * (link.latency + call.message / link.bandwidth);
}
Bytes shift_sent(const CollectiveCall& call, int /*rank*/) { return one_step(call, 0) * call.message; }

const AlgorithmEntry kGather("gather/direct", "every rank sends its part straight to root",
                             {CollectiveKind::kGather, kEveryBackend, kEveryBackend, steps_of_root,
                              gather_step, at_once_time, gather_sent, copied_by_root});

const AlgorithmEntry kScatter("scatter/direct", "root sends every rank its part",
                              {CollectiveKind::kScatter, kEveryBackend, kEveryBackend, steps_of_root,
                               scatter_step, at_once_time, scatter_sent, copied_by_root});

const AlgorithmEntry kAllToAll("all_to_all/direct", "every rank sends every other its block, all at once",
                               {CollectiveKind::kAllToAll, kEveryBackend, kEveryBackend, other_ranks,
                                all_to_all_step, at_once_time, all_but_own, own_shard});

const AlgorithmEntry kShift("shift/direct", "every rank sends its successor its array",
                            {CollectiveKind::kShift, kEveryBackend, kEveryBackend, one_step, shift_step,
                             shift_time, shift_sent});

const AlgorithmEntry kPairwise("all_to_all/pairwise",
                               "one block out and one in per step, with a rank one further each time",
                               {CollectiveKind::kAllToAll, kMessageBackends, kOnRequest, other_ranks,
                                pairwise_step, pairwise_time, all_but_own, own_shard});

}  // namespace
}  // namespace stepcast::direct_collective
