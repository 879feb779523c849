#include "sim/strategies/pipeline_order.hpp"

#include <algorithm>

#include "core/error.hpp"

namespace stepcast {
namespace {

using Order = std::vector<PipelineAction>;

/// `warmup` forwards, then pairs, then what is left.
Order woven(const Order& forwards, const Order& backwards, std::size_t warmup, bool backward_first) {
  Order order(forwards.begin(), forwards.begin() + static_cast<std::ptrdiff_t>(warmup));
  std::size_t backward = 0;
  for (std::size_t forward = warmup; forward < forwards.size(); ++forward, ++backward) {
    if (backward_first) order.push_back(backwards[backward]);
    order.push_back(forwards[forward]);
    if (!backward_first) order.push_back(backwards[backward]);
  }
  order.insert(order.end(), backwards.begin() + static_cast<std::ptrdiff_t>(backward), backwards.end());
  return order;
}

/// Chunks of `rank` in the order in which micro-batches pass them.
Order interleaved_forwards(const PipelineShape& shape, int rank) {
  const int group = shape.micro_batches / std::max(1, shape.micro_batches / shape.ranks);
  Order order;
  for (int first = 0; first < shape.micro_batches; first += group)
    for (int stage = 0; stage < shape.virtual_stages; ++stage)
      for (int i = first; i < first + group; ++i) order.push_back({true, stage * shape.ranks + rank, i});
  return order;
}

Order interleaved(const PipelineShape& shape, int rank) {
  const int rounds = std::max(1, shape.micro_batches / shape.ranks);
  if (shape.virtual_stages < 2 || shape.ranks < 2)
    throw UsageError("--schedule interleaved needs at least two ranks and --virtual-stages of at least 2");
  if (shape.micro_batches % rounds != 0)
    throw UsageError("--schedule interleaved: " + std::to_string(shape.micro_batches) +
                     " micro-batches do not form " + std::to_string(rounds) + " equal rounds over " +
                     std::to_string(shape.ranks) + " ranks; take a multiple of the ranks");
  const Order forwards = interleaved_forwards(shape, rank);
  Order backwards = forwards;
  for (PipelineAction& action : backwards) {
    const int stage = action.chunk / shape.ranks;
    action = {false, (shape.virtual_stages - 1 - stage) * shape.ranks + rank, action.micro_batch};
  }
  const int warmup =
      (shape.virtual_stages - 1) * (shape.micro_batches / rounds) + 2 * (shape.ranks - 1 - rank);
  return woven(forwards, backwards, std::min(forwards.size(), static_cast<std::size_t>(warmup)), false);
}

}  // namespace

Order pipeline_order(const PipelineShape& shape, int rank, bool forward_only) {
  if (shape.schedule != "interleaved" && shape.virtual_stages != 1)
    throw UsageError("--virtual-stages goes with --schedule interleaved, not with " + shape.schedule);
  Order forwards;
  Order backwards;
  for (int i = 0; i < shape.micro_batches; ++i) {
    forwards.push_back({true, rank, i});
    backwards.push_back({false, rank, i});
  }
  if (shape.schedule == "interleaved") {
    Order order = interleaved(shape, rank);
    return forward_only ? interleaved_forwards(shape, rank) : order;
  }
  if (forward_only) return forwards;
  if (shape.schedule == "1f1b") {
    const int warmup = std::min(shape.micro_batches, shape.ranks - rank);
    return woven(forwards, backwards, static_cast<std::size_t>(warmup), true);
  }
  std::reverse(backwards.begin(), backwards.end());
  forwards.insert(forwards.end(), backwards.begin(), backwards.end());
  return forwards;
}

}  // namespace stepcast
