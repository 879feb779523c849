#include "sim/collectives/double_tree.hpp"

#include <algorithm>
#include <cassert>
#include <utility>

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

class Plan {
 public:
  explicit Plan(int members) : members_(members) {
    for (int tree = 0; tree < 2; ++tree)
      for (int member = 0; member < members; ++member)
        if (const int parent = tree_parent(tree, member, members); parent >= 0)
          rounds_.edges.push_back({tree, member, parent, 0});
    rounds_.edges_of.resize(static_cast<std::size_t>(members));
    for (std::size_t e = 0; e < rounds_.edges.size(); ++e)
      for (const int member : {rounds_.edges[e].child, rounds_.edges[e].parent})
        rounds_.edges_of[static_cast<std::size_t>(member)].push_back(static_cast<int>(e));
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
  [[nodiscard]] TreeEdge& edge(int index) { return rounds_.edges[static_cast<std::size_t>(index)]; }
  [[nodiscard]] Turn& turn(int index) { return turns_[static_cast<std::size_t>(index)]; }

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
        for (const int other : rounds_.edges_of[static_cast<std::size_t>(member)]) {
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
    if (placed[static_cast<std::size_t>(e)]) return;
    int offset = 0;
    for (const int below : rounds_.edges_of[static_cast<std::size_t>(edge(e).child)])
      if (edge(below).tree == edge(e).tree && edge(below).parent == edge(e).child) {
        place_edge(below, flips, placed);
        offset = std::max(offset, edge(below).offset + 1);
      }
    const int wanted = turn(e).turn ^ static_cast<int>((flips >> static_cast<unsigned>(turn(e).chain)) & 1U);
    if (rounds_.period == 2 && offset % 2 != wanted) ++offset;
    edge(e).offset = offset;
    placed[static_cast<std::size_t>(e)] = true;
  }

  static constexpr int kMostChains = 8;
  const int members_;
  TreeRounds rounds_;
  std::vector<Turn> turns_;
  int chains_ = 0;
};

}  // namespace

int tree_parent(int tree, int number, int count) {
  if (tree == 0) return parent_in_tree(number, count);
  const auto there = [count](int n) { return count % 2 == 0 ? count - 1 - n : (n + count - 1) % count; };
  const auto back = [count](int n) { return count % 2 == 0 ? count - 1 - n : (n + 1) % count; };
  const int parent = parent_in_tree(there(number), count);
  return parent < 0 ? -1 : back(parent);
}

TreeRounds tree_rounds(int members) { return Plan(members).best(); }

}  // namespace stepcast
