#include "runner/backends/gloo_bytes.hpp"

#include <bit>
#include <cmath>

#include "sim/collectives/algorithm.hpp"

namespace stepcast {
namespace {

/// Round i of gloo's broadcast doubles the ranks that have the array: v, counted from root and below 2^i,
/// sends to v + 2^i. Source: gloo/broadcast.cc. (The tree of sim/collectives has as many rounds and another
/// shape.)
std::uint64_t broadcast_children(int rank, int root, int ranks) {
  const auto n = static_cast<unsigned>(ranks);
  const unsigned v = static_cast<unsigned>(rank + ranks - root) % n;
  std::uint64_t children = 0;
  for (unsigned reach = std::bit_ceil(v + 1); v + reach < n; reach *= 2) ++children;
  return children;
}

/// Gloo's ring runs downwards: rank r passes on all blocks but r, then all but r - 1. The model's runs
/// upwards and leaves out r + 1, then r + 2.
int rank_in_model_ring(int rank, int ranks) { return (rank + 2 * ranks - 2) % ranks; }

}  // namespace

std::uint64_t gloo_bytes_sent(const GlooMessage& message, int rank, int ranks) {
  if (ranks < 2) return 0;
  if (message.kind == CollectiveKind::kBroadcast)
    return message.bytes * broadcast_children(rank, message.root, ranks);
  const CollectiveCall call{Bytes(static_cast<double>(message.bytes)), ranks, message.root,
                            static_cast<double>(message.element_bytes)};
  const int place = message.kind == CollectiveKind::kAllReduce ? rank_in_model_ring(rank, ranks) : rank;
  const double bytes = algorithm_for(message.kind, "gloo").sent(call, place).count();
  return static_cast<std::uint64_t>(std::llround(bytes));
}

}  // namespace stepcast
