#pragma once

#include <algorithm>
#include <map>
#include <string>

#include "core/text.hpp"
#include "core/yaml.hpp"
#include "topologies/cluster.hpp"
#include "topologies/settings.hpp"

/// A host with an explicit list of parts and links, as importers and `topology generate` write it.
///
///     hosts:
///       - name: node
///         count: 16                                         # as for other hosts: node0 .. node15
///         nodes:
///           - {name: socket0, kind: socket}                 # the first one is a socket
///           - {name: pcie0, kind: pcie_switch}
///           - {name: gpu0, kind: device, device: h100-sxm}
///           - {name: nic0, kind: nic}
///         links:
///           - {between: [pcie0, socket0], kind: pcie, bandwidth: 48GB/s, latency: 500ns}
///           - {between: [gpu0, pcie0], kind: pcie, bandwidth: 48GB/s, latency: 500ns}
///
/// Names are those within the host: `gpu0` is the node `node3/gpu0` of the cluster.
namespace stepcast {

/// Name of a kind of node or link in files: `pcie_switch`, `infiniband`.
template <class Kind>
std::string key_of(Kind kind) {
  std::string key = lower(to_text(kind));
  std::ranges::replace(key, ' ', '_');
  return key;
}

/// Reads an entry of `links` between nodes of the given names. The link's name is `prefix` and `name`, or the
/// two ends joined by a dash. \throws InputError that names file, line and key
Link read_link(const YamlNode& item, const ClusterSettings& settings, const std::map<std::string, int>& nodes,
               const std::string& prefix);

/// Adds the `nodes` and `links` of a host's entry to host number `host`.
/// \throws InputError that names file, line and key
void add_explicit_parts(const YamlNode& node, const ClusterSettings& settings, int host, Cluster& cluster);

}  // namespace stepcast
