#pragma once

#include "sim/collectives/algorithm.hpp"

/// What the families of algorithms share: an array in n equal blocks.
namespace stepcast {

inline const std::vector<std::string> kEveryBackend{"", "gloo", "nccl"};
/// That can run whatever is made of messages; NCCL's kernels are what they are.
inline const std::vector<std::string> kMessageBackends{"", "gloo"};
/// Backends of what runs only where it was chosen.
inline const std::vector<std::string> kOnRequest{};

/// A rank or a block counted around the group; `number` is off by two rounds at most. (Every message of a
/// replay asks for several, and a division takes as long as all else of it.)
inline int rank_at(const CollectiveCall& call, int number) {
  while (number < 0) number += call.ranks;
  while (number >= call.ranks) number -= call.ranks;
  return number;
}

/// S/n: what one rank owns of the array.
inline Bytes shard(const CollectiveCall& call) { return call.message / call.ranks; }

inline Bytes own_shard(const CollectiveCall& call, int /*rank*/) { return shard(call); }

/// Where block `number` begins, counted around the array.
inline Bytes block_at(const CollectiveCall& call, int number) {
  return call.message * rank_at(call, number) / call.ranks;
}

}  // namespace stepcast
