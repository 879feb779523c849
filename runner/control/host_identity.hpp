#pragma once

#include <string>
#include <tuple>
#include <vector>

#include "runner/control/control_plane.hpp"

namespace stepcast {

/// The host of a rank. Network namespaces of one machine count as different hosts, as in a virtual cluster.
struct HostIdentity {
  std::string name;     ///< environment variable STEPCAST_HOST_NAME, or the host's name
  std::string machine;  ///< the kernel's boot id: one set of cores, one memory
  std::string network;  ///< network namespace: one loopback interface
  std::string clock;    ///< time namespace, which may shift the steady clock

  /// Equal for ranks on one host.
  [[nodiscard]] auto host() const { return std::tuple(name, machine, network); }
  [[nodiscard]] bool same_host(const HostIdentity& other) const { return host() == other.host(); }
  [[nodiscard]] bool same_machine(const HostIdentity& other) const { return machine == other.machine; }
  /// True if both have one steady clock.
  [[nodiscard]] bool same_clock(const HostIdentity& other) const {
    return machine == other.machine && clock == other.clock;
  }
};

/// The host of this process.
HostIdentity this_host();

/// The hosts of all ranks, at every rank; all ranks call it.
std::vector<HostIdentity> hosts_of_ranks(ControlPlane& control);

/// One host of a job.
struct JobHost {
  std::string name;
  std::vector<int> ranks;  ///< ascending
};

/// The hosts of the ranks, in the order of their first ranks.
std::vector<JobHost> group_by_host(const std::vector<HostIdentity>& host_of_rank);

/// `rank 2`, `ranks 2, 3`; if the ranks are on several hosts `ranks 2, 3 on host b and rank 4 on host c`.
/// \param host_of_rank by rank; empty: hosts are not named
std::string ranks_in_words(const std::vector<int>& ranks, const std::vector<HostIdentity>& host_of_rank);

}  // namespace stepcast
