#pragma once

#include <memory>
#include <vector>

#include "topologies/cluster.hpp"

namespace simgrid::s4u {
class Host;
}  // namespace simgrid::s4u

/// The one place where a Cluster becomes a SimGrid platform.
namespace stepcast {

/// SimGrid counts a flow in whole units; shards are fractions of a byte, so a unit is a small part of one.
constexpr double kUnitsPerByte = 1024.0;

/// The hosts of a Cluster that hold ranks and the links between them, in SimGrid, for one replay.
///
/// Links are split duplex under `network/model:CM02` without cross traffic and without a TCP window, so that
/// one flow of n bytes alone takes exactly alpha + n / bandwidth: the sum of the latencies and the smallest
/// bandwidth of its path. Several replays may follow each other in one process, one at a time; those over the
/// same network share one SimGrid engine, because every engine that was ever made slows all later ones (its
/// observers of completions stay).
class Platform {
 public:
  /// \param hosts indices of the cluster's hosts that hold ranks, sorted
  Platform(const Cluster& cluster, const std::vector<int>& hosts);

  /// Runs until nothing is under way and no timer is set.
  void run();

  [[nodiscard]] simgrid::s4u::Host* host(int index) const { return hosts_[static_cast<std::size_t>(index)]; }
  /// Latency of the path between two different hosts.
  [[nodiscard]] double latency_s(int from, int to) const;
  /// Bandwidth of the path between two different hosts.
  [[nodiscard]] double bandwidth_bytes_per_s(int from, int to) const;

 private:
  std::vector<simgrid::s4u::Host*> hosts_;  ///< by host index; null where there are no ranks
};

}  // namespace stepcast
