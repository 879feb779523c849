#pragma once

#include <map>

#include "core/yaml.hpp"
#include "topologies/cluster.hpp"
#include "topologies/devices.hpp"
#include "topologies/settings.hpp"

/// Parts of a host: sockets, devices, PCIe, NVLink, NICs.
///
///     hosts:
///       - name: node
///         sockets: 2
///         smp: {bandwidth: 22GB/s, latency: 500ns}         # between any two sockets
///         devices: {model: h100-sxm, count: 8}             # gpu0 .. gpu7, evenly over the sockets
///         pcie: {generation: 5, width: 16, switches: 4}    # bridges pcie0 .. pcie3; none unless set
///         nvlink: {switch: true}                           # every link of every GPU goes to NVSwitches
///         nics: {count: 8}                                 # nic0 .. nic7, which the network joins
///
/// Each PCIe switch has an even share of the devices and of the NICs, and one link to its socket. The network
/// joins the first socket of a host without NICs. A host without devices and NICs is one node, whatever its
/// number of sockets; `smp` is an error there.
///
/// NVLink without a switch is the same for every pair, or listed; a GPU has at most the links of its device.
/// Bandwidths follow from the technology and may be set:
///
///     nvlink: {all_to_all: 6}
///     nvlink: {pairs: [[gpu0, gpu1, 12], [gpu2, gpu3, 12]]}
///     pcie: {bandwidth: 50GB/s, latency: 500ns}
///
/// A host that follows no such rule, like many real ones, lists its parts (topologies/explicit_parts.hpp).
namespace stepcast {

// Default latency of a hop: half the time of a small copy between two GPUs over NVLink (1 us) and over PCIe
// (2 us), and of crossing to another socket.
constexpr Seconds kNvLinkLatency(500e-9);
constexpr Seconds kPcieLatency(500e-9);
constexpr Seconds kSmpLatency(500e-9);

/// Default bandwidth between two sockets: NCCL's value for processors of the time of the devices and of the
/// PCIe generation (src/graph/topo.h):
///
///     compute capability below 7.0      6 GB/s    QPI of Broadwell
///     else up to PCIe generation 3     10 GB/s    UPI of Skylake
///     generation 4                     16 GB/s    Infinity Fabric
///     generation 5 and later           22 GB/s    UPI of Sapphire Rapids
///
/// \param compute_capability of the devices, 70 for 7.0; 0: no devices
BytesPerSecond usual_smp_bandwidth(int pcie_generation, int compute_capability);

/// Keys of a host's entry that describe its parts.
const std::vector<std::string>& host_part_keys();

/// The device with this name. \throws InputError that names file, line and key
const DeviceModel& device_at(const YamlNode& name, const ClusterSettings& settings);

/// Adds the parts that the entry describes to host number `host`.
/// \throws InputError that names file, line and key
void add_host_parts(const YamlNode& node, const ClusterSettings& settings, int host, Cluster& cluster);

/// Usable bandwidth of PCIe in NCCL: 12, 24 and 48 GB/s for 16 lanes of generation 3, 4 and 5, in
/// proportion for fewer lanes. \pre 1 <= generation <= 6
BytesPerSecond pcie_bandwidth(int generation, int width);

/// A link's bandwidth and latency.
struct PartLink {
  BytesPerSecond bandwidth;
  Seconds latency{0};
};

/// Adds parts to one host of a cluster, and links between them. Names of nodes and links start with the
/// host's. Nodes are indices of the cluster's.
class HostBuilder {
 public:
  HostBuilder(Cluster& cluster, int host) : cluster_(cluster), host_(host) {}

  [[nodiscard]] Host& host() { return cluster_.hosts[host_]; }
  [[nodiscard]] std::string name_in_host(int node) const { return cluster_.name_in_host(node); }

  /// Adds a node `host/name`, which the host lists if it is a device or a NIC.
  int add(const std::string& name, NodeKind kind, const std::string& device = "");
  /// Gives the host's own node, its first socket, the name `host/name`.
  int name_first_socket(const std::string& name);
  /// `socket<number>` for each number, every two joined. \pre numbers not empty
  std::vector<int> add_sockets(const std::vector<int>& numbers, const PartLink& smp);
  /// Adds a node below a socket or a PCIe switch.
  int add_below(int above, const std::string& name, NodeKind kind, const PartLink& pcie,
                const std::string& device = "");
  /// Adds the next PCIe switch: `pcie0`, `pcie1`, ...
  int add_bridge(int above, const PartLink& pcie);
  /// Adds a link named `host/a-b`.
  void join(int a, int b, const PartLink& wire, LinkKind kind);
  /// Links a device to the NVSwitches of the host, which are one node.
  void join_nvswitch(int device, const PartLink& wire, int domain = 0);

 private:
  Cluster& cluster_;
  const int host_;
  int bridges_ = 0;
  std::map<int, int> nvswitches_{};  ///< by domain
};

}  // namespace stepcast
