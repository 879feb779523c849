#include <algorithm>
#include <cassert>
#include <cmath>
#include <map>
#include <utility>

#include "core/ranges.hpp"
#include "sim/collectives/blocks.hpp"
#include "sim/collectives/double_tree.hpp"
#include "sim/collectives/nccl_tuning.hpp"

namespace stepcast {
namespace {

/// `ncclGetBtree`.
int parent_in_tree(int number, int count) {
  if (number == 0) return -1;
  const int bit = number & -number;
  const int up = (number ^ bit) | (bit << 1);
  return up < count ? up : number ^ bit;
}

/// An edge's turn, 0 or 1, and which of the chains that edges form it is in: edges that share a sender or a
/// receiver take turns, which leaves one choice per chain.
struct Turn {
  int chain = -1;
  int turn = 0;
};

class TreePlan {
 public:
  explicit TreePlan(int members) {
    for (int tree = 0; tree < 2; ++tree)
      for (int member = 0; member < members; ++member)
        if (const int parent = tree_parent(tree, member, members); parent >= 0)
          rounds_.edges.push_back({tree, member, parent, 0});
    rounds_.edges_of.resize(members);
    for (std::size_t e = 0; e < rounds_.edges.size(); ++e)
      for (const int member : {rounds_.edges[e].child, rounds_.edges[e].parent})
        rounds_.edges_of[member].push_back(static_cast<int>(e));
    make_chains();
  }

  /// Tries both turns of every chain and keeps what is over first. \pre few chains: there are two or three
  TreeRounds best() {
    std::pair<int, int> least{-1, 0};
    TreeRounds result;
    for (unsigned flips = 0; flips < 1U << static_cast<unsigned>(chains_); ++flips) {
      const int sum = place(flips);
      if (least.first >= 0 && std::pair(rounds_.last, sum) >= least) continue;
      least = {rounds_.last, sum};
      result = rounds_;
    }
    return result;
  }

 private:
  [[nodiscard]] TreeEdge& edge(int index) { return rounds_.edges[index]; }
  [[nodiscard]] Turn& turn(int index) { return turns_[index]; }

  void make_chains() {
    turns_.resize(rounds_.edges.size());
    for (int e = 0; e < static_cast<int>(turns_.size()); ++e)
      if (turn(e).chain < 0) follow(e, {chains_++, 0});
    assert(chains_ <= kMostChains);
  }

  void follow(int start, Turn first) {
    std::vector<std::pair<int, Turn>> open{{start, first}};
    while (!open.empty()) {
      const auto [e, now] = open.back();
      open.pop_back();
      if (turn(e).chain >= 0) continue;
      turn(e) = now;
      for (const int member : {edge(e).child, edge(e).parent})
        for (const int other : rounds_.edges_of[member]) {
          const bool beside = edge(other).child == edge(e).child || edge(other).parent == edge(e).parent;
          if (other == e || !beside) continue;
          rounds_.period = 2;
          open.emplace_back(other, Turn{now.chain, 1 - now.turn});
        }
    }
  }

  /// The earliest offsets: after those of the child's children, in the edge's turn. \returns their sum
  int place(unsigned flips) {
    rounds_.last = 0;
    int sum = 0;
    std::vector<bool> placed(rounds_.edges.size());
    for (int e = 0; e < static_cast<int>(placed.size()); ++e) {
      place_edge(e, flips, placed);
      rounds_.last = std::max(rounds_.last, edge(e).offset);
      sum += edge(e).offset;
    }
    return sum;
  }

  void place_edge(int e, unsigned flips, std::vector<bool>& placed) {
    if (placed[e]) return;
    int offset = 0;
    for (const int below : rounds_.edges_of[edge(e).child])
      if (edge(below).tree == edge(e).tree && edge(below).parent == edge(e).child) {
        place_edge(below, flips, placed);
        offset = std::max(offset, edge(below).offset + 1);
      }
    const int wanted = turn(e).turn ^ static_cast<int>((flips >> static_cast<unsigned>(turn(e).chain)) & 1U);
    if (rounds_.period == 2 && offset % 2 != wanted) ++offset;
    edge(e).offset = offset;
    placed[e] = true;
  }

  static constexpr int kMostChains = 8;
  TreeRounds rounds_;
  std::vector<Turn> turns_;
  int chains_ = 0;
};

constexpr double kChunk = 128.0 * kKibi;  ///< NCCL's between hosts

/// Equal pieces of either half of the array, of at most 128 KiB.
int chunks(const CollectiveCall& call) {
  return std::max(1, static_cast<int>(std::ceil(call.message.count() / 2.0 / kChunk)));
}

const TreeRounds& rounds_over(int ranks) {
  static thread_local std::map<int, TreeRounds> made;
  return cached(made, ranks, [&] { return tree_rounds(ranks); });
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
  for (const int e : trees.edges_of[rank]) {
    const TreeEdge& edge = trees.edges[e];
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
  std::vector<int> over(ranks);
  for (int index = 0; index < steps_of(call, 0); ++index) {
    std::vector<int> next = over;
    for (int rank = 0; rank < ranks; ++rank) {
      const Exchange step = step_of(call, rank, index);
      for (const int peer : {step.to, step.from})
        if (peer >= 0) next[rank] = std::max({next[rank], over[rank] + 1, over[peer] + 1});
    }
    over = std::move(next);
  }
  return *std::ranges::max_element(over);
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
  const std::size_t edges = rounds_over(call.ranks).edges_of[rank].size();
  return call.message / 2.0 * static_cast<double>(edges);
}

const AlgorithmEntry kDoubleBinaryTree(
    "all_reduce/double_binary_tree",
    "two binary trees, each up and down with half of the array in chunks of 128 KiB",
    {CollectiveKind::kAllReduce, kEveryBackend, kOnRequest, steps_of, step_of, time_of, sent_by, nullptr,
     NcclAlgorithm::kTree});

}  // namespace

int tree_parent(int tree, int number, int count) {
  if (tree == 0) return parent_in_tree(number, count);
  const auto there = [count](int n) { return count % 2 == 0 ? count - 1 - n : (n + count - 1) % count; };
  const auto back = [count](int n) { return count % 2 == 0 ? count - 1 - n : (n + 1) % count; };
  const int parent = parent_in_tree(there(number), count);
  return parent < 0 ? -1 : back(parent);
}

TreeRounds tree_rounds(int members) { return TreePlan(members).best(); }

}  // namespace stepcast
