#pragma once

#include "sim/collectives/algorithm.hpp"

/// Helpers of the families of algorithms: an array in n equal blocks.
namespace stepcast {

inline const std::vector<std::string> kEveryBackend{"", "gloo", "nccl"};
/// Backends that can run any algorithm made of messages; NCCL's kernels are fixed.
inline const std::vector<std::string> kMessageBackends{"", "gloo"};
/// Default backends of algorithms that run only on request.
inline const std::vector<std::string> kOnRequest{};

/// Rank or block counted around the group. `number` is off by two rounds at most: a division would take as
/// long as the rest of a message's replay.
inline int rank_at(const CollectiveCall& call, int number) {
  while (number < 0) number += call.ranks;
  while (number >= call.ranks) number -= call.ranks;
  return number;
}

/// S/n: what one rank owns of the array.
inline Bytes shard(const CollectiveCall& call) { return call.message / call.ranks; }

inline Bytes own_shard(const CollectiveCall& call, int /*rank*/) { return shard(call); }

/// Position of block `number`, counted around the array.
inline Bytes block_at(const CollectiveCall& call, int number) {
  return call.message * rank_at(call, number) / call.ranks;
}

}  // namespace stepcast
