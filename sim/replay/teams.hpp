#pragma once

#include <map>
#include <utility>
#include <vector>

#include "sim/replay/collectives.hpp"

namespace stepcast {

class RankRun;

/// Replayed ranks that perform an operation together, because its hooks are collectives among them.
struct Team {
  /// Of the k-th hook: the part of the team that each member calls with, and how many parts there are.
  struct Call {
    std::vector<int> part_of;
    int parts = 0;
  };
  std::vector<int> ranks;
  std::vector<Call> calls;
  std::vector<RankRun*> here;  ///< by member: come to the operation
  int missing = 0;             ///< how many have not
};

/// Finds operations with collectives inside (of tensor, context and expert parallelism) that need no events:
/// what their ranks do until the end follows from when each of them begins. That is so where
///
/// - links carry nothing else meanwhile: no messages, and of other collectives those alone that have a rank
///   in common, which is not in two at a time;
/// - every rank's end comes after every rank's beginning: whoever begins last knows all;
/// - no collective of another stream has been issued in the step, which would take multiprocessors from what
///   computes.
///
/// Dates are those of the event-driven replay, to rounding: laws hold both to it
/// (tests/replay/symmetry_test.cpp).
class Teams {
 public:
  Teams(const CollectiveWorld& world, const Schedule& schedule, CollectivePlans& plans,
        Collectives& collectives)
      : world_(world), schedule_(schedule), plans_(plans), collectives_(collectives) {}
  Teams(const Teams&) = delete;
  Teams& operator=(const Teams&) = delete;

  /// Whose operation with these calls, one behind the other, needs no events; null: it does.
  Team* team(int rank, const std::vector<const Collective*>& calls);

  /// When a collective of such an operation ends that all its ranks have called at `begin`. It counts as
  /// called.
  double call(int rank, const Collective& collective, double begin);

 private:
  /// Of a class of links: replayed ranks of groups whose collectives cross it, and whether messages do.
  struct Users {
    std::vector<std::vector<int>> groups;
    bool other = false;
  };
  void find_users();
  [[nodiscard]] std::vector<int> replayed_of(int group) const;
  const Load* own_load(int rank, const Collective& collective);
  /// Null: some rank would end before another begins, or does something else.
  Team* find_team(int rank, const std::vector<int>& names);

  const CollectiveWorld& world_;
  const Schedule& schedule_;
  CollectivePlans& plans_;
  Collectives& collectives_;
  std::vector<Users> users_;                                             ///< by class of links
  std::map<const CollectivePlan*, const Load*> loads_;                   ///< null: links are shared
  std::map<std::pair<int, std::vector<int>>, Team*> team_of_;            ///< by rank and the groups' names
  std::map<std::pair<std::vector<int>, std::vector<int>>, Team> teams_;  ///< by members and the groups' names
};

}  // namespace stepcast
