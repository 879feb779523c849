#include <algorithm>
#include <map>

#include "topologies/network.hpp"

namespace stepcast {
namespace {

/// Number of ports of a k-ary fat tree.
long long capacity(long long k) { return k * k * k / 4; }

/// Number of ports per host, if all have the same; else 1.
int ports_of_a_host(const Cluster& cluster, const std::vector<int>& ports) {
  std::map<int, int> count;
  for (const int port : ports) ++count[cluster.node(port).host];
  const int first = count.empty() ? 1 : count.begin()->second;
  return std::ranges::all_of(count, [&](const auto& one) { return one.second == first; }) ? first : 1;
}

/// `k`, or the smallest that has enough ports and does not split a host between edge switches. \throws
/// InputError
int arity(const YamlNode& node, const ClusterSettings& settings, const Cluster& cluster) {
  const std::vector<int> all = network_ports(cluster);
  const auto ports = static_cast<long long>(all.size());
  int smallest = 2;
  while (capacity(smallest) < ports) smallest += 2;
  const int k = node.has("k") ? settings.integer(node.at("k"), 0) : 0;
  if (k == 0) {
    const int step = 2 * ports_of_a_host(cluster, all);
    return (smallest + step - 1) / step * step;
  }
  const YamlNode given = node.at("k");
  constexpr int kMost = 1024;  // a quarter of a billion ports
  if (k % 2 != 0 || k > kMost) given.fail("expected an even number from 2 to {}, found {}", kMost, k);
  if (capacity(k) < ports)
    given.fail("a {}-ary fat tree has {} ports, but {} are needed; expected at least {}", k, capacity(k),
               ports, smallest);
  return k;
}

/// A k-ary fat tree of switches with k ports:
///
///     pods                    k, each with k/2 edge and k/2 aggregation switches
///     core switches           (k/2)^2; number j * k/2 + i joins the aggregation switches j of all pods
///     ports for the hosts     k^3/4, which fill edge after edge
///
/// All links are equal, none is oversubscribed. Pods, and edge switches in the last pod, that no port needs
/// are left out, as are levels above the last fork. A path has two links within an edge switch, four
/// within a pod and six between pods. Source: Al-Fares, Loukissas & Vahdat, "A scalable, commodity data
/// center network architecture", SIGCOMM 2008.
///
///     network: {kind: fat_tree, k: 16, protocol: infiniband, rate: 400Gb/s}
///
/// Without `k`, and with 0, the smallest that has enough ports and edge switches for whole hosts, as they are
/// cabled: of eight adapters each 16, 32, 48, ...
///
/// Holds: full bisection bandwidth; with the spreading of `Paths`, a shift permutation over a full tree loads
/// no link with two flows.
void generate_fat_tree(const YamlNode& node, const ClusterSettings& settings, const NetworkWire& wire,
                       Cluster& cluster) {
  const std::vector<int> ports = network_ports(cluster);
  const int half = arity(node, settings, cluster) / 2, count = static_cast<int>(ports.size());
  std::vector<int> cores, aggregations;  // aggregation switches of the current pod
  int edges = 0, edge = 0;
  for (int i = 0; i < count; ++i) {
    if (count > half && i % (half * half) == 0) {
      if (count > half * half && cores.empty()) cores = add_switches(cluster, "core", half * half);
      aggregations.clear();
      for (int j = 0; j < half; ++j) {  // numbered as the pod's edge switches, of which it has as many
        aggregations.push_back(add_switch(cluster, "aggregation" + std::to_string(edges + j)));
        for (int k = 0; k < half && !cores.empty(); ++k)
          join(cluster, aggregations.back(), cores[static_cast<std::size_t>(j) * half + k], wire);
      }
    }
    if (i % half == 0) {
      edge = add_switch(cluster, "edge" + std::to_string(edges++));
      for (const int aggregation : aggregations) join(cluster, edge, aggregation, wire);
    }
    join(cluster, ports[i], edge, wire);
  }
}

const Registration<NetworkKind> kFatTree{
    network_kinds(), "fat_tree", {.keys = {"k"}, .generate = generate_fat_tree}};

}  // namespace
}  // namespace stepcast
