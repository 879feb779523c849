#include <algorithm>
#include <cmath>
#include <map>

#include "sim/collectives/blocks.hpp"
#include "sim/collectives/double_tree.hpp"
#include "sim/collectives/nccl_tuning.hpp"

namespace stepcast {
namespace {

constexpr double kChunk = 128.0 * kKibi;  ///< NCCL's between hosts

/// Equal pieces of either half of the array, of at most 128 KiB.
int chunks(const CollectiveCall& call) {
  return std::max(1, static_cast<int>(std::ceil(call.message.count() / 2.0 / kChunk)));
}

const TreeRounds& rounds_over(int ranks) {
  static thread_local std::map<int, TreeRounds> made;
  const auto [found, is_new] = made.try_emplace(ranks);
  if (is_new) found->second = tree_rounds(ranks);
  return found->second;
}

/// Rounds of one phase: the last chunk crosses the last edge.
int phase_rounds(const TreeRounds& trees, int count) { return trees.last + 1 + trees.period * (count - 1); }

int steps_of(const CollectiveCall& call, int /*rank*/) {
  return call.ranks < 2 ? 0 : 2 * phase_rounds(rounds_over(call.ranks), chunks(call));
}

/// One step per round, of which a rank has nothing to do in some: chunks go up both trees and are added, one
/// in and one out per rank and round; then the same backwards, from the roots down.
Exchange step_of(const CollectiveCall& call, int rank, int index) {
  const TreeRounds& trees = rounds_over(call.ranks);
  const int count = chunks(call);
  const int phase = phase_rounds(trees, count);
  const bool up = index < phase;
  Exchange step{.reduce = up, .after = index - 1};
  for (const int e : trees.edges_of[static_cast<std::size_t>(rank)]) {
    const TreeEdge& edge = trees.edges[static_cast<std::size_t>(e)];
    const int since = up ? index - edge.offset : index - phase - (trees.last - edge.offset);
    if (since < 0 || since % trees.period != 0 || since / trees.period >= count) continue;
    const Bytes size = call.message / (2.0 * count);
    const Bytes at = size * (edge.tree * count + since / trees.period);
    if ((rank == edge.child) == up) {
      step.to = up ? edge.parent : edge.child;
      step.sent = size;
      step.sent_at = at;
    } else {
      step.from = up ? edge.child : edge.parent;
      step.received = size;
      step.received_at = at;
    }
  }
  return step;
}

/// Messages that follow each other where both halves are one chunk: a rank goes on as soon as it has what it
/// needs, not with the slowest.
int rounds_of_one_chunk(int ranks) {
  const CollectiveCall call{Bytes(1), ranks};
  std::vector<int> over(static_cast<std::size_t>(ranks));
  for (int index = 0; index < steps_of(call, 0); ++index) {
    std::vector<int> next = over;
    for (int rank = 0; rank < ranks; ++rank) {
      const Exchange step = step_of(call, rank, index);
      for (const int peer : {step.to, step.from})
        if (peer >= 0)
          next[static_cast<std::size_t>(rank)] =
              std::max({next[static_cast<std::size_t>(rank)], over[static_cast<std::size_t>(rank)] + 1,
                        over[static_cast<std::size_t>(peer)] + 1});
    }
    over = std::move(next);
  }
  return *std::max_element(over.begin(), over.end());
}

/// With c chunks per tree, and L(n) messages one after the other for a single chunk up and down (2, 4, 6, 8,
/// 10 of 2, 3, 4, 5 to 7 and 8 ranks, about 4 log2 n):
///
///     T(n, S) = (L(n) + 4 (c - 1)) * (alpha + S/(2 c) * beta),     2 (c - 1) for two ranks
///
/// Latency grows with log n instead of n, and S >> L alpha / beta takes 2 S beta: every rank sends and
/// receives at most 2 S. Reduction arithmetic is not charged.
/// Holds: T(1, S) = 0. T grows with S but for the step of the pipeline where one chunk more is cut.
Seconds time_of(const CollectiveCall& call, const LinkCost& link) {
  if (call.ranks < 2) return Seconds{0};
  const int count = chunks(call);
  const int rounds = rounds_of_one_chunk(call.ranks) + 2 * rounds_over(call.ranks).period * (count - 1);
  return rounds * (link.latency + call.message / (2.0 * count) / link.bandwidth);
}

/// S/2 per edge that the rank is an end of: up as a child, down as a parent.
Bytes sent_by(const CollectiveCall& call, int rank) {
  if (call.ranks < 2) return Bytes(0);
  const std::size_t edges = rounds_over(call.ranks).edges_of[static_cast<std::size_t>(rank)].size();
  return call.message / 2.0 * static_cast<double>(edges);
}

const Registration<Algorithm> kDoubleBinaryTree{
    algorithms(),
    {"all_reduce/double_binary_tree",
     "two binary trees, each up and down with half of the array in chunks of 128 KiB",
     {CollectiveKind::kAllReduce,
      kEveryBackend,
      {},
      steps_of,
      step_of,
      time_of,
      sent_by,
      {},
      NcclAlgorithm::kTree}}};

}  // namespace
}  // namespace stepcast
