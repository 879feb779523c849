#pragma once

#include "sim/collectives/algorithm.hpp"

/// What the ring algorithms share.
namespace stepcast {

/// The rank that follows `rank` in a ring, and the one before it.
inline int successor(const CollectiveCall& call, int rank) { return (rank + 1) % call.ranks; }
inline int predecessor(const CollectiveCall& call, int rank) { return (rank + call.ranks - 1) % call.ranks; }

/// S/n: what one rank owns of the array.
inline Bytes shard(const CollectiveCall& call) { return call.message / call.ranks; }

/// T = steps * (alpha + bytes * beta): steps that follow each other, a message of `bytes` on every link in
/// each.
inline Seconds lockstep_time(int steps, Bytes bytes, const LinkCost& link) {
  return steps * (link.latency + bytes / link.bandwidth);
}

/// One round: every part of S/n passes all ranks but one.
///
///     T(n, S) = (n - 1) alpha  +  (n - 1)/n * S * beta
///
/// Holds: T(1, S) = 0. T never falls when S or n grows.
inline Seconds round_time(const CollectiveCall& call, const LinkCost& link) {
  return lockstep_time(call.ranks - 1, shard(call), link);
}
inline Bytes round_sent(const CollectiveCall& call, int /*rank*/) { return shard(call) * (call.ranks - 1); }
inline Bytes own_shard(const CollectiveCall& call, int /*rank*/) { return shard(call); }

/// The exchange of a ring: `bytes` to the successor, as much from the predecessor.
inline Exchange ring_exchange(const CollectiveCall& call, int rank, Bytes bytes, bool reduce, int after) {
  return {successor(call, rank), bytes, predecessor(call, rank), bytes, reduce, after};
}

}  // namespace stepcast
