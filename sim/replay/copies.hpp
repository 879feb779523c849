#pragma once

#include <utility>
#include <vector>

#include "sim/replay/network.hpp"
#include "sim/replay/replay.hpp"

namespace stepcast {

/// Nodes between which copies move: memories of devices, hosts and sockets.
class CopyEnds {
 public:
  /// \param cluster of the input, with staging if copies need it \pre both outlive this
  CopyEnds(const ReplayInput& input, const Cluster& cluster);
  [[nodiscard]] std::pair<int, int> of(int rank, const Copy& copy) const;

 private:
  const ReplayInput& input_;
  const Cluster& cluster_;
  const std::vector<int> socket_;  ///< by node: the socket above it over PCIe; -1: none
  std::vector<int> memory_;        ///< by socket: the node of its memory; -1: none
};

/// The cluster with a node for the memory of each socket, which `rate` limits, and NVLink-C2C between devices
/// and sockets. Other nodes and links keep their numbers.
Cluster with_socket_memory(const Cluster& cluster, BytesPerSecond rate);

/// Copies between the memories of a host and its devices: flows over the links of the host, shared with each
/// other and with all other traffic. A copy of n bytes alone takes
///
///     launch + alpha + n / bandwidth of the path
///
/// The path of a staged copy begins or ends with the staging rate of the host. Between devices it prefers
/// NVLink to PCIe; devices at one PCIe switch share its uplink. Copy engines are not counted: a copy that
/// must wait for another one is ordered by `after`. Asynchronous launch: a pinned copy occupies the launch
/// thread, not the device.
class Copies {
 public:
  /// \throws UsageError if a rank of a copy has no device of its own, or is on another host; std::logic_error
  /// if a copy is issued between the hooks of a backward operation
  Copies(Network& network, const ReplayInput& input, const Cluster& with_staging);

  /// The cluster with a staging node for every host that copies from or to pageable memory, at a link as fast
  /// as its thread: SimGrid 3.32 limits the rate of flows by links only. Other nodes keep their numbers.
  static Cluster with_staging(const ReplayInput& input);
  /// Sum of the times of all copies, each alone.
  static Seconds one_by_one(const ReplayInput& input);
  /// Nodes at the ends of all copies, with repetitions.
  static std::vector<int> nodes(const ReplayInput& input, const Cluster& with_staging);

  /// Launch overhead of a copy on the main thread of `rank`, in seconds.
  [[nodiscard]] double launch_s(int rank) const;
  /// Starts a copy of `rank`; calls back when the last byte has arrived.
  void start(int rank, const Copy& copy, Callback done);
  [[nodiscard]] const CopyEnds& ends() const { return ends_; }
  /// Bytes of the copies that each rank has issued so far.
  [[nodiscard]] const std::vector<double>& bytes_moved() const { return bytes_moved_; }

 private:
  Network& network_;
  const CopyEnds ends_;
  const ReplayInput& input_;
  std::vector<double> bytes_moved_;
};

}  // namespace stepcast
