#pragma once

#include <utility>
#include <vector>

#include "sim/replay/clock.hpp"
#include "sim/replay/shared_host.hpp"

namespace stepcast {

/// The cores of all hosts: runs jobs in simulated time.
class Processors {
 public:
  /// \param cores of each host
  /// \param cores_per_rank of each host, of bound ranks; 0 where all ranks share all cores
  Processors(Clock& clock, const std::vector<int>& cores, const std::vector<int>& cores_per_rank,
             const SharingCost& sharing);
  /// `hosts` hosts that are parts of one machine with `cores`.
  Processors(Clock& clock, std::size_t hosts, int cores, int cores_per_rank, const SharingCost& sharing);

  /// Runs `job` on `host` and calls back at its end. \pre job.seconds > 0
  void run(int host, const Job& job, Callback ended);

  /// Takes `cores` of `host` for communication of `rank` until they are released. \return what to release
  int occupy(int host, double cores, int rank);
  void release(int host, int job);

 private:
  struct Host {
    SharedHost shared;
    std::vector<std::pair<int, Callback>> callbacks;  ///< by job id
    double armed = -1.0;                              ///< date of the timer that counts; others are stale
  };
  void arm(std::size_t host);
  void end_jobs(std::size_t host);

  /// Where a host's cores are: `hosts_` holds one entry per machine.
  [[nodiscard]] std::size_t machine(int host) const { return machine_[static_cast<std::size_t>(host)]; }

  Clock& clock_;
  std::vector<Host> hosts_;
  std::vector<std::size_t> machine_;  ///< by host
};

}  // namespace stepcast
