#pragma once

#include "sim/core/yaml.hpp"
#include "topologies/cluster.hpp"
#include "topologies/settings.hpp"

/// What is inside a host: sockets, devices, PCIe, NVLink, NICs.
///
///     hosts:
///       - name: node
///         sockets: 2
///         smp: {bandwidth: 22GB/s, latency: 500ns}          # between neighbouring sockets
///         devices: {model: h100-sxm, count: 8}              # gpu0 .. gpu7, evenly over the sockets
///         pcie: {generation: 5, width: 16, switches: 4}     # 4 bridges, each with an even share of devices
///         and
///                                                           # NICs and one link to its socket; 0: none
///         nvlink: {switch: true}                            # every link of every GPU goes to NVSwitches
///         nics: {count: 8}                                  # what the network joins; else it joins the
///         first socket
///
/// NVLink without a switch: `nvlink: {all_to_all: 6}` gives every pair 6 links, `nvlink: {pairs: [[gpu0,
/// gpu1, 12]]}` lists them. Bandwidths follow from the technology and may be set: `pcie: {bandwidth: 50GB/s,
/// latency: 500ns}`.
///
/// A host that follows no such rule, as a real one often does not, lists its parts
/// (topologies/explicit_parts.hpp).
namespace stepcast {

// Time of a hop where a file does not say: half of what a small copy between two GPUs takes over NVLink (1
// us) and PCIe (2 us), a socket's crossing.
constexpr Seconds kNvLinkLatency(500e-9);
constexpr Seconds kPcieLatency(500e-9);
constexpr Seconds kSmpLatency(500e-9);

/// Between two sockets where nobody says it, by the PCIe generation of the time, as NCCL counts Intel's: 10
/// GB/s beside generation 3 (UPI of Skylake), 16 beside 4, 22 beside 5 (Sapphire Rapids). Source:
/// src/graph/topo.h.
BytesPerSecond usual_smp_bandwidth(int pcie_generation);

/// The keys of a host's entry that describe its parts.
const std::vector<std::string>& host_part_keys();

/// Adds the parts that the entry describes to host number `host`. \throws InputError that names file, line,
/// key
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
