#pragma once

#include <vector>

/// Two binary trees over the same members, each of which carries half of an array: inner members of one are
/// leaves of the other, so that both together load every link alike. Source: Sanders, Speck & Träff, Parallel
/// Computing 35 (2009); shapes as `ncclGetDtree` of NCCL makes them.
namespace stepcast {

/// Parent of member `number` of `count` in tree 0 or 1; -1: its root. Leaves of tree 0 are the odd numbers;
/// tree 1 is tree 0 mirrored, or shifted by one where the count is odd.
int tree_parent(int tree, int number, int count);

/// Rounds in which messages go up the edges of both trees: one per round in and out of every member.
///
/// A member sends to at most two parents and receives from at most two children, so that two rounds in turn
/// do for all edges. The first piece crosses an edge in round `offset`, the next ones every `period` rounds.
struct TreeEdge {
  int tree = 0;
  int child = 0;
  int parent = 0;
  int offset = 0;
};
struct TreeRounds {
  std::vector<TreeEdge> edges;
  std::vector<std::vector<int>> edges_of;  ///< by member: indices
  int period = 1;
  int last = 0;  ///< largest offset
};
/// \pre members >= 2
TreeRounds tree_rounds(int members);

}  // namespace stepcast
