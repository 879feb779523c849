#pragma once

#include "core/yaml.hpp"
#include "topologies/cluster.hpp"
#include "topologies/settings.hpp"

/// What is inside a host: sockets, devices, PCIe, NVLink, NICs.
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
/// joins the first socket of a host without NICs. A host without devices and NICs is one node, however many
/// sockets it has, so that `smp` means nothing there and is refused.
///
/// NVLink without a switch is the same for every pair, or listed; bandwidths follow from the technology and
/// may be set:
///
///     nvlink: {all_to_all: 6}
///     nvlink: {pairs: [[gpu0, gpu1, 12], [gpu2, gpu3, 12]]}
///     pcie: {bandwidth: 50GB/s, latency: 500ns}
///
/// A host that follows no such rule, as a real one often does not, lists its parts
/// (topologies/explicit_parts.hpp).
namespace stepcast {

// Time of a hop where a file does not say: half of what a small copy between two GPUs takes over NVLink
// (1 us) and PCIe (2 us), a socket's crossing.
constexpr Seconds kNvLinkLatency(500e-9);
constexpr Seconds kPcieLatency(500e-9);
constexpr Seconds kSmpLatency(500e-9);

/// Between two sockets where nobody says it, as NCCL counts what was sold at the time of the devices and of
/// the PCIe generation (src/graph/topo.h):
///
///     compute capability below 7.0      6 GB/s    QPI of Broadwell
///     else up to PCIe generation 3     10 GB/s    UPI of Skylake
///     generation 4                     16 GB/s    Infinity Fabric
///     generation 5 and later           22 GB/s    UPI of Sapphire Rapids
///
/// \param compute_capability of the devices, 70 for 7.0; 0: there are none
BytesPerSecond usual_smp_bandwidth(int pcie_generation, int compute_capability);

/// The keys of a host's entry that describe its parts.
const std::vector<std::string>& host_part_keys();

/// Adds the parts that the entry describes to host number `host`.
/// \throws InputError that names file, line and key
void add_host_parts(const YamlNode& node, const ClusterSettings& settings, int host, Cluster& cluster);

/// Usable bandwidth of PCIe as NCCL counts it: 12, 24 and 48 GB/s for 16 lanes of generation 3, 4 and 5, in
/// proportion for fewer lanes. \pre 1 <= generation <= 6
BytesPerSecond pcie_bandwidth(int generation, int width);

/// Adds a node that is part of host number `host`, named `host/name`, to the cluster and, where it is a
/// device or a NIC, to the host. Returns its index.
int add_part(Cluster& cluster, int host, const std::string& name, NodeKind kind,
             const std::string& device = "");

/// Adds a link, named `host/a-b`, between two parts of one host, or between a part and a switch. Bandwidth,
/// latency and kind are taken from `wire`.
void join_parts(Cluster& cluster, int a, int b, const Link& wire);

}  // namespace stepcast
