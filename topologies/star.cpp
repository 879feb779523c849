#include "topologies/network.hpp"

namespace stepcast {
namespace {

/// One switch of unlimited capacity, one link from each port to it. A path between two ports has two
/// links: its latency is twice the link's, its bandwidth the link's.
void generate_star(const YamlNode& /*node*/, const ClusterSettings& /*settings*/, const NetworkWire& wire,
                   Cluster& cluster) {
  const int hub = add_switch(cluster, "switch");
  for (const int port : network_ports(cluster)) join(cluster, port, hub, wire);
}

const Registration<NetworkKind> kStar{network_kinds(), "star", {.keys = {}, .generate = generate_star}};

}  // namespace
}  // namespace stepcast
