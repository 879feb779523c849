#pragma once

#include <vector>

#include "records/machine_state.hpp"
#include "runner/backend/session.hpp"

namespace stepcast {

/// Which ranks may run on the cores of this one, and which on its machine.
struct CoreSharing {
  std::vector<int> on_machine;  ///< this one among them
  std::vector<int> ranks;       ///< this one among them
  std::vector<int> processes;   ///< of the others
  bool crowded = false;         ///< more ranks than cores

  /// Of this rank's cores, where ranks that share them are not others.
  [[nodiscard]] MachineWatch watch(int threads_per_rank) const {
    return MachineWatch(threads_per_rank * static_cast<int>(ranks.size()), processes);
  }
};

/// Ends an interval of a rank's watch, outside what is timed. Of the ranks of `taking_part` on each machine one
/// probes, in turns, while all others wait. All ranks call it.
MachineState look(RankSession& session, const CoreSharing& sharing, MachineWatch& watch,
                  const std::vector<int>& taking_part, int turn);

/// 0, 1, ... of a job.
std::vector<int> all_ranks(const RankSession& session);

/// All ranks call it.
CoreSharing find_core_sharing(RankSession& session);

}  // namespace stepcast
