#pragma once

#include <cmath>
#include <cstdint>
#include <map>
#include <memory_resource>
#include <optional>
#include <unordered_map>
#include <vector>

#include "core/units.hpp"
#include "topologies/cluster.hpp"
#include "topologies/nccl_parameters.hpp"
#include "topologies/paths.hpp"

/// NCCL's search for rings among the GPUs of a communicator, before it chooses an algorithm.
namespace stepcast {

/// Hardware of the slowest part of a way between two GPUs, the fastest first.
enum class NcclHardware : std::uint8_t { kNvLink, kPcie, kNetwork };

/// One order in which a ring passes the ranks of a group, as indices in the group.
struct NcclRing {
  std::vector<int> order;
  double share = 1.0;  ///< of the channels
};

/// GPUs of a group, as the slowest one.
struct NcclGpu {
  int compute_capability = 0;  ///< 90 for 9.0
  BytesPerSecond memory_bandwidth;
  const NcclParameters* parameters = nullptr;  ///< null of a graph made by hand
};

/// NVLink SHARP. Bandwidths per channel.
struct NcclNvls {
  int channels = 0;          ///< 0: none
  double scale = 1.0;        ///< of NVLink, over the planned one
  BytesPerSecond bandwidth;  ///< inside a host
  BytesPerSecond network;    ///< between hosts
};

/// NCCL's sockets over Ethernet.
struct NcclTcp {
  double part = 1.0;                 ///< of the bandwidth that they reach
  BytesPerSecond message{HUGE_VAL};  ///< rate of one over the slowest edge between hosts
};

/// Result of NCCL's search for rings: `channels` rings at once, each with `bandwidth` on every edge.
struct NcclGraph {
  int ranks = 1;
  int nodes = 1;  ///< hosts
  NcclGpu gpu{};
  NcclHardware intra = NcclHardware::kNvLink;  ///< inside hosts
  bool through_socket = false;                 ///< some GPU reaches its NIC only through a socket
  Seconds network_latency{0};                  ///< of the wire, the longest edge between hosts
  NcclTcp sockets{};

  int channels = 1;
  double scale = 1.0;           ///< of the slowest link, over the planned one
  BytesPerSecond bandwidth;     ///< per channel
  std::vector<NcclRing> rings;  ///< without repetitions
  bool same_channels = true;    ///< all rings have one order (which NIC a ring leaves by may differ)

  NcclNvls nvls{};

  int sockets_passed = 0;  ///< the most that an edge inside a host passes

  std::vector<int> node_of_rank;  ///< host, from 0, by index in the group

  [[nodiscard]] bool tcp() const { return std::isfinite(sockets.message.count()); }
};

/// The way between two GPUs.
struct NcclPair {
  NcclHardware hardware = NcclHardware::kNvLink;
  BytesPerSecond bandwidth;  ///< what a flow of payload gets of it
  /// Bytes on the links per byte of payload. Intel's PCIe root complex takes 6/5 for what goes from one GPU
  /// to another through one socket (`INTEL_P2P_OVERHEAD` in src/graph/topo.h).
  double overhead = 1.0;
  int sockets = 0;                             ///< on the way
  Seconds latency{0};                          ///< of the wire
  bool tcp = false;                            ///< between hosts, over Ethernet
  const NcclParameters* parameters = nullptr;  ///< of the sender; null of a pair made by hand
  const Path* path = nullptr;                  ///< the same
};

/// Searches the graphs of groups of GPUs of one cluster, each once.
///
/// After src/graph/search.cc of NCCL v2.30. Speeds are tried from the highest down, for GPUs of compute
/// capability 9.0 inside a host 60, 50, 40, 30, 24, ... GB/s. For each, rings are added as long as they fit:
/// every edge takes `speed` from every link on its way, in its direction. The first with the largest number
/// of channels times speed stays; the search ends below 0.49 of its speed. Then channels of at least 25 GB/s
/// are split in two (from 9.0 on only those of at least 50 GB/s, or where there are at most 4). Several
/// hosts: rings pass host after host, and links of NICs and of the network count as the others do.
///
/// A ring is, of those that fit, the one that leaves the most on its fullest link, then on all; NCCL searches
/// the same space in an order of its own until a time limit. Up to 8 GPUs per host all orders are tried,
/// beyond that the natural one. Left out: NCCL's second pass, which raises the speed of a found solution;
/// GPUs that lend others their NIC (PXN); processors other than Intel's.
class NcclGraphs {
 public:
  /// \param parameters of all GPUs of the cluster, in place of those of their generation
  explicit NcclGraphs(const Cluster& cluster, const std::optional<NcclParameters>& parameters = std::nullopt)
      : routes_(cluster), parameters_(parameters) {}

  /// \param places devices of the cluster (node indices), in the order of the group \pre all different
  const NcclGraph& of(const std::vector<int>& places);
  /// \pre from != to, both devices
  const NcclPair& pair(int from, int to);
  const Path& path(int from, int to) { return routes_.between(from, to); }

  [[nodiscard]] const Cluster& cluster() const { return routes_.cluster(); }
  [[nodiscard]] Routes& routes() { return routes_; }
  /// Model parameters of a GPU's collectives. \param compute_capability 90 for 9.0
  [[nodiscard]] const NcclParameters& parameters(int compute_capability) const {
    return parameters_ ? *parameters_ : nccl_parameters(compute_capability);
  }

 private:
  Routes routes_;
  const std::optional<NcclParameters> parameters_;
  std::map<std::vector<int>, NcclGraph> graphs_;
  std::pmr::monotonic_buffer_resource memory_;
  std::pmr::unordered_map<std::uint64_t, NcclPair> pairs_{&memory_};  ///< by both nodes
};

/// What NCCL's sockets move over an adapter of Ethernet, of `wire` that TCP leaves of it: bytes go through
/// the host's memory, by one thread per connection (no NCCL_NSOCKS_PERTHREAD), which copies at 8 GB/s and
/// sends, one after the other:
///
///     1 / rate = 1 / wire + 1 / (8 GB/s)
///
/// 10, 25, 32 and 100 Gb/s so reach 1.03, 2.15, 2.56 and 4.8 GB/s, of which users report 1.0 to 1.15, 2.0 to
/// 2.6, at most 2.4 (nccl issue 209) and 3 to 6 (issues 450, 465). Collectives of several groups at once have
/// a thread each, and share the wire.
BytesPerSecond nccl_tcp_rate(BytesPerSecond wire);
/// Of a message over TCP beside what NCCL counts of InfiniBand's: the kernels of both hosts (10 to 30 us; two
/// hosts add up 1 KB in 40 to 164 us, nccl issue 527).
constexpr Seconds kNcclTcpHop{20e-6};

/// Checks that every rank has a GPU of its own. \throws UsageError that names the cluster and what it lacks
void check_nccl_places(const Cluster& cluster, const std::vector<int>& place_of_rank);

}  // namespace stepcast
