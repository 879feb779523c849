#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/registry.hpp"
#include "core/yaml.hpp"
#include "topologies/cluster.hpp"
#include "topologies/settings.hpp"

/// Network kinds: generators of switches and links between given hosts, one file each.
namespace stepcast {

/// What the links of a network are.
struct NetworkWire {
  LinkKind kind = LinkKind::kNetwork;
  BytesPerSecond bandwidth;
  Seconds latency{0};
  Queue queue = Queue::kFair;
  Bytes token_bucket{};
  double efficiency = 1.0;  ///< what the protocol leaves of a rate; 1 where bandwidths are stated as usable
};

struct NetworkKind {
  std::vector<std::string> keys;  ///< of its own, beside `kind` and those of its wires
  bool has_uplinks = false;       ///< as `uplink_wire` reads them
  /// Adds switches and links to a cluster that has its hosts with their parts. The node is the file's
  /// `network`. \throws InputError that names file, line and key
  std::function<void(const YamlNode&, const ClusterSettings&, const NetworkWire&, Cluster&)> generate;
};

Registry<NetworkKind>& network_kinds();

/// Adds the switches and links that `network: {kind: ...}` describes.
///
/// Its wires have either `bandwidth: 12GB/s`, usable, or `protocol: infiniband` with `rate: 400Gb/s`, of
/// which the protocol leaves `efficiency`: 0.96 of InfiniBand (48 GB/s of NDR, nccl-tests issue 290) and of
/// `roce`, which the same adapters speak, 0.941 of `ethernet` (TCP with an MTU of 1,500) unless the file sets
/// it. `queue: fifo` and `token_bucket: 64KiB` are those of Link. `latency` of one link: 500 ns for
/// InfiniBand, 700 ns for RoCE, whose switches take some 0.3 us longer, and 2 us for Ethernet unless set.
/// \throws InputError that names file, line and key
void add_network(const YamlNode& node, const ClusterSettings& settings, Cluster& cluster);

/// Reads `queue` and `token_bucket` where they stand. \throws InputError that names file, line and key
void read_port(const YamlNode& node, const ClusterSettings& settings, Queue& queue, Bytes& token_bucket);

/// The wire between a switch with `ports` ports of `wire` and each of `spines` spines:
///
///     bandwidth = ports * wire.bandwidth / oversubscription / spines
///
/// so that all uplinks of a switch together carry its ports' bandwidth divided by `oversubscription: 2` (1
/// unless set). No uplink is thinner than a port, so at most ports / oversubscription spines are connected,
/// one at least. Or what `uplink: 100Gb/s` sets for one uplink, meant like the `rate` or the `bandwidth`
/// beside it. \throws InputError that names file, line and key \pre ports >= 1, spines >= 1
/// \param spines lowered to those that are connected
NetworkWire uplink_wire(const YamlNode& node, const ClusterSettings& settings, const NetworkWire& wire,
                        int ports, int& spines);

/// The nodes of a host that a network joins: its NICs, or its socket where it has none.
std::vector<int> ports_of(const Host& host);
/// Those of host after host.
std::vector<int> network_ports(const Cluster& cluster);

/// What a link is sold as, and what libraries read of an adapter: its bandwidth before the protocol took its
/// part, by the efficiencies above. The bandwidth itself of links that are not of a network.
BytesPerSecond nominal_rate(const Link& link);

/// Adds a switch.
int add_switch(Cluster& cluster, const std::string& name);
/// Adds `spine0`, `spine1`, ...
std::vector<int> add_switches(Cluster& cluster, const std::string& name, int count);

/// Adds a link that is named after its ends: `node3/nic0-leaf0`.
void join(Cluster& cluster, int a, int b, const NetworkWire& wire);

/// True when there is one switch, the last node, and every other node hangs on it by exactly one link.
bool is_star(const Cluster& cluster);

}  // namespace stepcast
