#include "topologies/network.hpp"

namespace stepcast {
namespace {

/// Two tiers: `ports_per_leaf` ports at each leaf, in the order of the ports, and every leaf at every one of
/// `spines` spines. A path has two links within a leaf and four between leaves. Uplinks: see
/// `uplink_wire`; a last leaf with free ports has the same.
///
///     network: {kind: leaf_spine, ports_per_leaf: 16, spines: 4, oversubscription: 2,
///               protocol: infiniband, rate: 400Gb/s}
///
/// Holds: with equally filled leaves, an even number of them,
///
///     bisection bandwidth = ports * wire.bandwidth / 2 / oversubscription
void generate_leaf_spine(const YamlNode& node, const ClusterSettings& settings, const NetworkWire& wire,
                         Cluster& cluster) {
  const int ports_per_leaf = settings.integer(node.at("ports_per_leaf"), 1);
  int spine_count = settings.integer(node.at("spines"), 1);
  const NetworkWire uplink = uplink_wire(node, settings, wire, ports_per_leaf, spine_count);
  const std::vector<int> spines = add_switches(cluster, "spine", spine_count);
  int free_ports = 0, leaves = 0, leaf = 0;
  for (const int port : network_ports(cluster)) {
    if (free_ports == 0) {
      leaf = add_switch(cluster, "leaf" + std::to_string(leaves++));
      for (const int spine : spines) join(cluster, leaf, spine, uplink);
      free_ports = ports_per_leaf;
    }
    join(cluster, port, leaf, wire);
    --free_ports;
  }
}

const Registration<NetworkKind> kLeafSpine{
    network_kinds(),
    "leaf_spine",
    {.keys = {"ports_per_leaf", "spines"}, .has_uplinks = true, .generate = generate_leaf_spine}};

}  // namespace
}  // namespace stepcast
