#pragma once

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "sim/replay/collective_run.hpp"
#include "sim/replay/replay.hpp"

namespace stepcast {

/// All collectives of a replay: ranks of a group meet in the order in which they call, as in a process group.
class Collectives {
 public:
  Collectives(const CollectiveWorld& world, const Schedule& schedule, CollectivePlans& plans)
      : world_(world), schedule_(schedule), plans_(plans), met_(schedule.groups.size()) {}

  /// Rank `rank`, which is replayed, calls a collective of its group; `done` is called when its part is over.
  void join(int rank, const Collective& collective, Callback done);

  /// The one that `rank`, which is replayed, calls it with.
  [[nodiscard]] int group_of(int rank, const Collective& collective) const {
    return world_.transport.symmetry().group(schedule_.group_index(collective.group, rank));
  }
  /// Of NCCL: called by these ranks.
  void count(const CollectivePlan& plan, const std::vector<int>& ranks);

  /// Whether collectives of different groups run beside each other on one rank, those of one group one at a
  /// time.
  [[nodiscard]] bool stream_per_group() const { return world_.nccl != nullptr; }

  /// What NCCL has sent so far, by replayed rank: of those that it stands for, the one that sent most.
  [[nodiscard]] std::vector<double> bytes_sent() const;

 private:
  struct Open {
    std::unique_ptr<CollectiveRun> run;
    int left = 0;  ///< ranks that are not done
  };
  /// What a group needs once somebody calls it.
  struct Meeting {
    Members members;
    std::map<int, int> index_of;   ///< by replayed rank
    std::vector<long long> calls;  ///< by index: so far
  };
  struct NcclCalls {
    const CollectivePlan* plan = nullptr;
    double bytes = 0.0;  ///< of all messages
    const std::vector<int>* ranks = nullptr;
  };
  Meeting& meeting(std::size_t group);
  std::unique_ptr<CollectiveRun> make_run(const Collective& collective, int group, const Members& members);
  void leave(const std::pair<int, long long>& key, const Callback& done);

  const CollectiveWorld& world_;
  const Schedule& schedule_;
  CollectivePlans& plans_;
  std::vector<std::unique_ptr<Meeting>> met_;       ///< by group
  std::map<std::pair<int, long long>, Open> open_;  ///< by group and number of the call
  std::map<int, NcclCalls> nccl_calls_;             ///< by number of the plan
};

}  // namespace stepcast
