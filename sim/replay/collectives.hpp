#pragma once

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "sim/replay/collective_run.hpp"
#include "sim/replay/replay.hpp"

namespace stepcast {

/// All collectives of a replay. Calls of a group match in the order of issue, as in a process group.
class Collectives {
 public:
  Collectives(const ReplayWorld& world, const Schedule& schedule, CollectivePlans& plans)
      : world_(world), schedule_(schedule), plans_(plans), groups_(schedule.groups.size()) {}

  /// Adds a call of `rank`, which is replayed, and calls `done` at the end of its part.
  void join(int rank, const Collective& collective, Callback done);

  /// True if collectives of different groups run concurrently on one rank, and those of one group one at a
  /// time.
  [[nodiscard]] bool stream_per_group() const { return world_.input.nccl_graphs != nullptr; }

  /// Bytes that NCCL has sent so far, by replayed rank; of its class, the most.
  [[nodiscard]] std::vector<double> bytes_sent() const;

 private:
  struct Open {
    std::unique_ptr<CollectiveRun> run;
    int left = 0;  ///< ranks that have not finished
  };
  /// State of a group that has called a collective.
  struct GroupState {
    Members members;
    std::map<int, int> index_of;   ///< by replayed rank
    std::vector<long long> calls;  ///< number of calls by index
  };
  struct NcclCalls {
    const CollectivePlan* plan = nullptr;
    double bytes = 0.0;  ///< of all messages
    const std::vector<int>* ranks = nullptr;
  };
  GroupState& state_of(std::size_t group);
  std::unique_ptr<CollectiveRun> make_run(const Collective& collective, int group, const Members& members);
  void leave(const std::pair<int, long long>& key, const Callback& done);

  const ReplayWorld& world_;
  const Schedule& schedule_;
  CollectivePlans& plans_;
  std::vector<std::unique_ptr<GroupState>> groups_;  ///< by group
  std::map<std::pair<int, long long>, Open> open_;   ///< by group and number of the call
  std::map<int, NcclCalls> nccl_calls_;              ///< by number of the plan
};

}  // namespace stepcast
