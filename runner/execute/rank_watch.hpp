#pragma once

#include <vector>

#include "records/watch.hpp"
#include "runner/backend/session.hpp"

namespace stepcast {

/// Watch of one rank and of the ranks that share its cores and its machine. All ranks construct it together.
class RankWatch {
 public:
  /// \param threads_per_rank that want to run at once
  RankWatch(RankSession& session, int threads_per_rank);

  /// True if there are more ranks than cores.
  [[nodiscard]] bool crowded() const { return crowded_; }
  void own_stolen_time() { watch_.own_stolen_time(); }
  void begin() { watch_.begin(); }
  /// Ends an interval outside of what is timed. On each machine one of the `ranks` probes, in turns, while
  /// all others wait. All ranks call it.
  MachineState end(const std::vector<int>& ranks);

 private:
  RankSession& session_;
  std::vector<int> on_machine_;  ///< ranks, including this one
  bool crowded_ = false;
  int turn_ = 0;
  Watch watch_;
};

}  // namespace stepcast
