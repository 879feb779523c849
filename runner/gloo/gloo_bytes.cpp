#include "runner/gloo/gloo_bytes.hpp"

#include <cmath>

#include "sim/collectives/algorithm.hpp"

namespace stepcast {
namespace {

/// Gloo's ring runs downwards: rank r passes on all blocks but r, then all but r - 1. The model's runs
/// upwards and leaves out r + 1, then r + 2.
int rank_in_model_ring(int rank, int ranks) { return (rank + 2 * ranks - 2) % ranks; }

}  // namespace

std::uint64_t gloo_bytes_sent(const GlooMessage& message, int rank, int ranks) {
  if (ranks < 2) return 0;
  const CollectiveCall call{Bytes(static_cast<double>(message.bytes)), ranks, message.root,
                            static_cast<double>(message.element_bytes)};
  const int place = message.kind == CollectiveKind::kAllReduce ? rank_in_model_ring(rank, ranks) : rank;
  const double bytes = algorithm_for(message.kind, "gloo").sent(call, place).count();
  return static_cast<std::uint64_t>(std::llround(bytes));
}

}  // namespace stepcast
