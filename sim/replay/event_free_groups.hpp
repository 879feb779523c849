#pragma once

#include <map>
#include <utility>
#include <vector>

#include "sim/replay/collectives.hpp"

namespace stepcast {

class RankRun;

/// Replayed ranks that perform an operation together, because its hooks are collectives among them.
struct EventFreeGroup {
  /// Call of the k-th hook.
  struct Call {
    std::vector<int> part_of;  ///< by member: part of the group that calls together
    int parts = 0;
  };
  std::vector<int> ranks;
  std::vector<Call> calls;
  std::vector<RankRun*> here;  ///< by member; set when the member arrives at the operation
  int missing = 0;             ///< number of members that have not arrived
};

/// Operations with collectives inside (of tensor, context and expert parallelism) that need no events: the
/// dates of their ranks follow from the dates at which they begin. Conditions:
///
/// - the links carry nothing else meanwhile: no messages, and only collectives with a rank in common, which
///   is in one of
///   them at a time;
/// - the end of every rank comes after the beginning of every rank, so that the last to begin can compute
///   all;
/// - no collective of another stream was issued in the step, because it would occupy multiprocessors.
///
/// Dates equal those of the event-driven replay up to rounding (tests/replay/symmetry_test.cpp).
class EventFreeGroups {
 public:
  EventFreeGroups(const CollectiveWorld& world, const Schedule& schedule, CollectivePlans& plans,
                  Collectives& collectives)
      : world_(world), schedule_(schedule), plans_(plans), collectives_(collectives) {}
  EventFreeGroups(const EventFreeGroups&) = delete;
  EventFreeGroups& operator=(const EventFreeGroups&) = delete;

  /// Group of ranks that can replay this operation without events, given its collectives in program order.
  /// Null if it needs event-by-event replay.
  EventFreeGroup* group(int rank, const std::vector<const Collective*>& calls);

  /// Date at which a collective of such an operation ends that all its ranks call at `begin`. Counts it as
  /// called.
  double call(int rank, const Collective& collective, double begin);

 private:
  /// Users of a class of links.
  struct Users {
    std::vector<std::vector<int>> groups;  ///< replayed ranks of groups with collectives
    bool other = false;                    ///< messages
  };
  void find_users();
  [[nodiscard]] std::vector<int> replayed_of(int group) const;
  const Load* own_load(int rank, const Collective& collective);
  /// Null if some rank would end before another begins, or runs another program.
  EventFreeGroup* find_group(int rank, const std::vector<int>& names);

  const CollectiveWorld& world_;
  const Schedule& schedule_;
  CollectivePlans& plans_;
  Collectives& collectives_;
  std::vector<Users> users_;                                                   ///< by class of links
  std::map<const CollectivePlan*, const Load*> loads_;                         ///< null: links are shared
  std::map<std::pair<int, std::vector<int>>, EventFreeGroup*> group_of_rank_;  ///< by rank and group names
  std::map<std::pair<std::vector<int>, std::vector<int>>, EventFreeGroup>
      found_;  ///< by members and group names
};

}  // namespace stepcast
