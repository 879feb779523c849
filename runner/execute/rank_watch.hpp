#pragma once

#include <unistd.h>

#include <algorithm>
#include <vector>

#include "core/program.hpp"
#include "core/ranges.hpp"
#include "records/watch.hpp"
#include "runner/backend/session.hpp"

namespace stepcast {

/// Watch of one rank and of the ranks that share its cores and its machine. All ranks construct it together.
class RankWatch {
 public:
  /// \param threads_per_rank that want to run at once
  RankWatch(RankSession& session, int threads_per_rank) : session_(session) {
    const std::vector<int> cores = usable_cores();
    std::vector<double> mine{static_cast<double>(::getpid())};
    mine.insert(mine.end(), cores.begin(), cores.end());
    const auto all = session.control->all_gather_numbers("cores", mine);
    const std::vector<HostIdentity>& hosts = session.place.hosts;
    const auto own = static_cast<std::size_t>(session.ranks.rank);
    std::vector<int> processes;  // of ranks that share cores with this one
    int sharing = 1;
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      if (rank != own && !hosts.empty() && !hosts[rank].same_machine(hosts[own])) continue;
      on_machine_.push_back(static_cast<int>(rank));
      const bool shares = std::any_of(all[rank].begin() + 1, all[rank].end(), [&](double core) {
        return std::ranges::count(cores, static_cast<int>(core)) > 0;
      });
      if (rank == own || !shares) continue;
      ++sharing;
      const auto process = static_cast<int>(all[rank].front());
      if (process != ::getpid() && std::ranges::count(processes, process) == 0) processes.push_back(process);
    }
    crowded_ = static_cast<std::size_t>(sharing) > cores.size();
    watch_ = Watch(threads_per_rank * sharing, processes);
  }

  /// True if there are more ranks than cores.
  [[nodiscard]] bool crowded() const { return crowded_; }
  void own_stolen_time() { watch_.own_stolen_time(); }
  void begin() { watch_.begin(); }

  /// Ends an interval outside of what is timed. On each machine one of the `ranks` probes, in turns, while
  /// all others wait. All ranks call it.
  MachineState end(const std::vector<int>& ranks) {
    MachineState state = watch_.end(false);
    const auto here = filtered(ranks, [&](int rank) { return std::ranges::count(on_machine_, rank) > 0; });
    const auto turn = static_cast<std::size_t>(turn_++);
    session_.backend->barrier();
    if (!here.empty() && here[turn % here.size()] == session_.ranks.rank) state.probe_per_s = probe_speed();
    session_.backend->barrier();
    watch_.begin();
    return state;
  }

 private:
  RankSession& session_;
  std::vector<int> on_machine_;  ///< ranks, including this one
  bool crowded_ = false;
  int turn_ = 0;
  Watch watch_;
};

}  // namespace stepcast
