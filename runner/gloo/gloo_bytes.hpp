#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "sim/collectives/algorithm.hpp"

namespace stepcast {

/// Array of a collective; `bytes` is the size of the whole array, never of a shard.
struct GlooMessage {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  std::size_t bytes = 0;
  int root = 0;
  std::size_t element_bytes = 4;
};

/// Bytes that rank `rank` of n sends in one collective as gloo runs it (all_reduce, reduce_scatter and
/// all_gather around rings, broadcast along a tree, gather and scatter straight), S the total array:
///
///     all_reduce               2 S less the two blocks that the rank does not pass on; 2 (n - 1)/n S for
///     equal
///                              blocks
///     reduce_scatter           (n - 1)/n S
///     all_gather, all_to_all   (n - 1)/n S
///     shift                    S
///     gather                   S/n, root 0
///     scatter                  root (n - 1)/n S, others 0
///     broadcast                S per child in gloo's tree
///
/// Holds: summed over the ranks 2 (n - 1) S for all_reduce, (n - 1) S for reduce_scatter, all_gather,
/// all_to_all and broadcast, n S for shift, (n - 1)/n S for gather and scatter.
inline std::uint64_t gloo_bytes_sent(const GlooMessage& message, int rank, int ranks) {
  if (ranks < 2) return 0;
  const CollectiveCall call{Bytes(static_cast<double>(message.bytes)), ranks, message.root,
                            static_cast<double>(message.element_bytes)};
  // Gloo's ring runs downwards: rank r passes on all blocks but r, then all but r - 1. The model's runs
  // upwards and leaves out r + 1, then r + 2.
  const int place = message.kind == CollectiveKind::kAllReduce ? (rank + 2 * ranks - 2) % ranks : rank;
  const double bytes = algorithm_for(message.kind, "gloo").sent(call, place).count();
  return static_cast<std::uint64_t>(std::llround(bytes));
}

}  // namespace stepcast
