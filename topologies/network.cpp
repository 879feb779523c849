#include "topologies/network.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <string>

#include "core/ranges.hpp"

namespace stepcast {
namespace {

/// What a protocol leaves of a rate, and the latency of one link.
struct Protocol {
  LinkKind kind;
  double efficiency;
  Seconds latency;
};

const std::map<std::string, Protocol> kProtocols{
    {"ethernet", {LinkKind::kEthernet, 0.941, Seconds(2e-6)}},
    {"infiniband", {LinkKind::kInfiniband, 0.96, Seconds(500e-9)}},
    {"roce", {LinkKind::kRoce, 0.96, Seconds(700e-9)}}};

/// `protocol` and `rate`. \throws InputError
NetworkWire protocol_wire(const YamlNode& node, const ClusterSettings& settings) {
  const Protocol& protocol = settings.value(node.at("protocol")).named("protocol", kProtocols);
  double efficiency = protocol.efficiency;
  if (node.has("efficiency")) efficiency = settings.value(node.at("efficiency")).number();
  if (!(efficiency > 0.0 && efficiency <= 1.0))
    node.at("efficiency").fail("expected a factor above 0 and at most 1");
  return {.kind = protocol.kind,
          .bandwidth = efficiency * settings.value(node.at("rate")).bytes_per_second(),
          .latency = protocol.latency,
          .efficiency = efficiency};
}

NetworkWire network_wire(const YamlNode& node, const ClusterSettings& settings) {
  NetworkWire wire;
  if (node.has("protocol")) {
    if (node.has("bandwidth"))
      node.at("bandwidth").fail("stands beside 'protocol'; expected either bandwidth, or protocol and rate");
    wire = protocol_wire(node, settings);
  } else {
    for (const char* key : {"rate", "efficiency"})
      if (node.has(key)) node.at(key).fail("belongs to 'protocol', which is missing");
    wire.bandwidth = settings.value(node.at("bandwidth")).bytes_per_second();
  }
  if (node.has("latency") || !node.has("protocol"))
    wire.latency = settings.value(node.at("latency")).seconds();
  read_port(node, settings, wire.queue, wire.token_bucket);
  return wire;
}

}  // namespace

Registry<NetworkKind>& network_kinds() {
  static Registry<NetworkKind> registry("kind of network");
  return registry;
}

void add_network(const YamlNode& node, const ClusterSettings& settings, Cluster& cluster) {
  const NetworkKind& kind =
      network_kinds().find(node.at("kind").one_of("kind of network", network_kinds().names()));
  std::vector<std::string> keys{"kind"};
  keys.insert(keys.end(), kind.keys.begin(), kind.keys.end());
  for (const char* key : {"bandwidth", "latency", "protocol", "rate", "efficiency", "queue", "token_bucket"})
    keys.emplace_back(key);
  if (kind.has_uplinks) keys.insert(keys.end(), {"oversubscription", "uplink"});
  node.allow_only(keys);
  kind.generate(node, settings, network_wire(node, settings), cluster);
}

void read_port(const YamlNode& node, const ClusterSettings& settings, Queue& queue, Bytes& token_bucket) {
  if (node.has("queue") && settings.value(node.at("queue")).one_of("queue", {"fair", "fifo"}) == "fifo")
    queue = Queue::kFifo;
  if (node.has("token_bucket")) token_bucket = settings.value(node.at("token_bucket")).bytes();
}

NetworkWire uplink_wire(const YamlNode& node, const ClusterSettings& settings, const NetworkWire& wire,
                        int ports, int& spines) {
  NetworkWire result = wire;
  if (node.has("uplink")) {
    if (node.has("oversubscription"))
      node.at("uplink").fail("stands beside 'oversubscription'; expected one of both");
    result.bandwidth = wire.efficiency * settings.value(node.at("uplink")).bytes_per_second();
    return result;
  }
  const double oversubscription =
      node.has("oversubscription") ? settings.value(node.at("oversubscription")).number() : 1.0;
  if (!(oversubscription >= 1.0))
    node.at("oversubscription")
        .fail("expected a factor of at least 1; 'uplink' sets the bandwidth of one uplink");
  spines = std::clamp(static_cast<int>(ports / oversubscription + 1e-9), 1, spines);
  result.bandwidth = wire.bandwidth * (ports / oversubscription / spines);
  return result;
}

BytesPerSecond nominal_rate(const Link& link) {
  for (const auto& [name, protocol] : kProtocols)
    if (link.kind == protocol.kind) return link.bandwidth / protocol.efficiency;
  return link.bandwidth;
}

std::vector<int> ports_of(const Host& host) {
  return host.nics.empty() ? std::vector<int>{host.node} : host.nics;
}

std::vector<int> network_ports(const Cluster& cluster) {
  std::vector<int> ports;
  for (const Host& host : cluster.hosts) std::ranges::copy(ports_of(host), std::back_inserter(ports));
  return ports;
}

int add_switch(Cluster& cluster, const std::string& name) {
  return cluster.add_node({name, NodeKind::kSwitch, -1, ""});
}

std::vector<int> add_switches(Cluster& cluster, const std::string& name, int count) {
  return transformed(std::views::iota(0, count),
                     [&](int i) { return add_switch(cluster, name + std::to_string(i)); });
}

void join(Cluster& cluster, int a, int b, const NetworkWire& wire) {
  cluster.links.push_back({cluster.node_name(a) + "-" + cluster.node_name(b), a, b, wire.bandwidth,
                           wire.latency, wire.kind, 1.0, wire.queue, wire.token_bucket});
}

bool is_star(const Cluster& cluster) {
  if (cluster.nodes.size() != cluster.links.size() + 1 || cluster.nodes.back().kind != NodeKind::kSwitch)
    return false;
  const auto hub = static_cast<int>(cluster.nodes.size()) - 1;
  std::vector<int> links(cluster.nodes.size());
  for (const Link& link : cluster.links) {
    if (std::max(link.a, link.b) != hub || std::min(link.a, link.b) == hub) return false;
    ++links[std::min(link.a, link.b)];
  }
  return std::all_of(links.begin(), links.end() - 1, [](int count) { return count == 1; });
}

}  // namespace stepcast
