#include "topologies/network.hpp"

namespace stepcast {
namespace {

/// Number of hosts that share a set of rail switches; default: all. \throws InputError
int hosts_per_pod(const YamlNode& node, const ClusterSettings& settings, int hosts, int spines) {
  if (!node.has("hosts_per_pod")) return hosts;
  const int result = settings.integer(node.at("hosts_per_pod"), 1);
  if (result < hosts && spines == 0)
    node.at("hosts_per_pod")
        .fail(
            "{0} hosts make {1} pods without a link between them; expected 'spines' of at least 1, or "
            "hosts_per_pod of at least {0}",
            hosts, (hosts + result - 1) / result);
  return result;
}

/// Rail-optimised pods: NIC i of each of the `hosts_per_pod` hosts of a pod goes to rail switch i of that
/// pod, so that GPUs of the same index are one switch apart. Every rail switch has an uplink to every one of
/// `spines` spines (see `uplink_wire`). Without spines (one pod only) the rails meet inside the hosts.
///
///     network: {kind: rails, hosts_per_pod: 32, spines: 16, protocol: infiniband, rate: 400Gb/s}
///
/// A path between ports has two links on the same rail of a pod, and four otherwise, or continues inside a
/// host if that is faster. Source: NVIDIA DGX SuperPOD reference architecture (H100): scalable units of 32
/// hosts with eight rails; Wang et al., "Rail-only", HotI 2024, for the form without spines.
void generate_rails(const YamlNode& node, const ClusterSettings& settings, const NetworkWire& wire,
                    Cluster& cluster) {
  int spine_count = node.has("spines") ? settings.integer(node.at("spines"), 0) : 0;
  for (const char* key : {"oversubscription", "uplink"})
    if (spine_count == 0 && node.has(key))
      node.at(key).fail("there are no spines; expected 'spines' of at least 1");
  const auto hosts = static_cast<int>(cluster.hosts.size());
  const int pod_size = hosts_per_pod(node, settings, hosts, spine_count);
  const NetworkWire uplink =
      spine_count > 0 ? uplink_wire(node, settings, wire, pod_size, spine_count) : wire;
  const std::vector<int> spines = add_switches(cluster, "spine", spine_count);
  std::vector<int> rails;
  for (int host = 0; host < hosts; ++host) {
    const int pod = host / pod_size;
    if (host % pod_size == 0) rails.clear();
    const std::vector<int> ports = ports_of(cluster.hosts[host]);
    for (std::size_t i = 0; i < ports.size(); ++i) {
      if (i == rails.size()) {
        rails.push_back(add_switch(cluster, "pod" + std::to_string(pod) + "-rail" + std::to_string(i)));
        for (const int spine : spines) join(cluster, rails[i], spine, uplink);
      }
      join(cluster, ports[i], rails[i], wire);
    }
  }
}

const Registration<NetworkKind> kRails{
    network_kinds(),
    "rails",
    {.keys = {"hosts_per_pod", "spines"}, .has_uplinks = true, .generate = generate_rails}};

}  // namespace
}  // namespace stepcast
