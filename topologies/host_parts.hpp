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
namespace stepcast {

/// The keys of a host's entry that describe its parts.
const std::vector<std::string>& host_part_keys();

/// Adds the parts that the entry describes to host number `host`. \throws InputError that names file, line,
/// key
void add_host_parts(const YamlNode& node, const ClusterSettings& settings, int host, Cluster& cluster);

/// Usable bandwidth of PCIe as NCCL counts it: 12, 24 and 48 GB/s for 16 lanes of generation 3, 4 and 5, in
/// proportion for fewer lanes. \pre 1 <= generation <= 6
BytesPerSecond pcie_bandwidth(int generation, int width);

}  // namespace stepcast
