#include "sim/plan/pipeline_path.hpp"

#include <algorithm>
#include <stdexcept>

namespace stepcast {

std::vector<double> PipelinePath::ends() const {
  const std::size_t chunks = forward_s.size();
  const auto parts = static_cast<std::size_t>(shape.micro_batches);
  constexpr double kNotYet = -1.0;
  // When forwards (first half) and backwards end, by chunk and micro-batch.
  std::vector<double> done(2 * chunks * parts, kNotYet);
  const auto at = [&](bool forward, std::size_t chunk, std::size_t part) -> double& {
    return done[((forward ? 0 : chunks) + chunk) * parts + part];
  };
  std::vector<std::vector<PipelineAction>> orders;
  for (int rank = 0; rank < shape.ranks; ++rank) orders.push_back(pipeline_order(shape, rank, false));
  std::vector<std::size_t> next(orders.size(), 0);
  std::vector<double> ends(orders.size(), 0.0);
  /// When what an action needs of another chunk is there.
  const auto ready = [&](const PipelineAction& action) {
    const auto chunk = static_cast<std::size_t>(action.chunk),
               part = static_cast<std::size_t>(action.micro_batch);
    if (action.forward && chunk == 0) return 0.0;
    if (!action.forward && chunk + 1 == chunks) return at(true, chunk, part);
    const std::size_t other = action.forward ? chunk - 1 : chunk + 1;
    const double end = at(action.forward, other, part);
    return end == kNotYet ? kNotYet : end + message_s[std::min(chunk, other)];
  };
  for (bool moves = true; moves;) {
    moves = false;
    for (std::size_t rank = 0; rank < orders.size(); ++rank)
      for (; next[rank] < orders[rank].size(); ++next[rank], moves = true) {
        const PipelineAction& action = orders[rank][next[rank]];
        const double from = ready(action);
        if (from == kNotYet) break;
        const auto chunk = static_cast<std::size_t>(action.chunk);
        ends[rank] = std::max(ends[rank], from) + (action.forward ? forward_s : backward_s)[chunk];
        at(action.forward, chunk, static_cast<std::size_t>(action.micro_batch)) = ends[rank];
      }
  }
  for (std::size_t rank = 0; rank < orders.size(); ++rank)
    if (next[rank] < orders[rank].size()) throw std::logic_error("the order of a pipeline waits for itself");
  return ends;
}

}  // namespace stepcast
