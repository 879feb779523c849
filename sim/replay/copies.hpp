#pragma once

#include <utility>
#include <vector>

#include "sim/replay/network.hpp"
#include "sim/replay/replay.hpp"

namespace stepcast {

/// Copies between the memories of a host and its devices: flows over the host's own links, which share them
/// with each other and with everything else that moves there. A copy of n bytes alone takes
///
///     launch + alpha + n / bandwidth of the path
///
/// where the path of a copy that is staged begins or ends with the host's staging rate. The path is the
/// cluster's: between devices NVLink goes before PCIe, and what is behind one PCIe switch shares its uplink.
/// Engines of a device are not counted: what must wait for another copy says so by `after`.
class Copies {
 public:
  /// \throws UsageError when the cluster has no device of its own for every rank that copies name, or on
  /// another host. \throws std::logic_error when a copy would be issued amid the hooks of a backward
  /// operation
  Copies(Network& network, const ReplayInput& input, const Cluster& with_staging);

  /// The cluster with a node for the staging buffer of every host that copies from or to memory that is not
  /// pinned, at a link of its first socket that is as fast as its thread: SimGrid 3.32 bounds the rate of no
  /// flow between two hosts, so that what bounds it must be a link. The nodes of the cluster keep their
  /// numbers.
  static Cluster with_staging(const ReplayInput& input);
  /// All of the schedule's copies one after another, each alone: the sum of the times above.
  static Seconds one_by_one(const ReplayInput& input);
  /// Nodes between which the schedule's copies move, with repetitions.
  static std::vector<int> nodes(const ReplayInput& input, const Cluster& with_staging);

  /// What the calling thread of `rank` needs to issue one.
  [[nodiscard]] double launch_s(int rank) const;
  /// Starts one that `rank` has issued; calls back when the last byte has arrived.
  void start(int rank, const Copy& copy, Callback done);
  /// Between which nodes of the cluster with staging a copy of `rank` moves.
  [[nodiscard]] std::pair<int, int> ends(int rank, const Copy& copy) const;
  /// Bytes that the copies issued by each rank have moved so far.
  [[nodiscard]] const std::vector<double>& bytes_moved() const { return bytes_moved_; }

 private:
  Network& network_;
  const Cluster& cluster_;
  const ReplayInput& input_;
  std::vector<double> bytes_moved_;
};

}  // namespace stepcast
