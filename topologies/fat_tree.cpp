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
  return std::all_of(count.begin(), count.end(), [&](const auto& one) { return one.second == first; }) ? first
                                                                                                       : 1;
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
  if (k % 2 != 0 || k > kMost)
    given.fail("expected an even number from 2 to " + std::to_string(kMost) + ", found " + std::to_string(k));
  if (capacity(k) < ports)
    given.fail("a " + std::to_string(k) + "-ary fat tree has " + std::to_string(capacity(k)) +
               " ports, but " + std::to_string(ports) + " are needed; expected at least " +
               std::to_string(smallest));
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
class FatTree {
 public:
  FatTree(int k, const NetworkWire& wire, Cluster& cluster) : half_(k / 2), wire_(wire), cluster_(cluster) {}

  void add() {
    const std::vector<int> ports = network_ports(cluster_);
    for (const int port : ports) {
      if (edge_ports_ == 0) start_edge(static_cast<int>(ports.size()));
      join(cluster_, port, edge_, wire_);
      edge_ports_ = (edge_ports_ + 1) % half_;
    }
  }

 private:
  void start_edge(int ports) {
    if (ports > half_ && edges_ % half_ == 0) start_pod(ports);
    edge_ = add_switch(cluster_, "edge" + std::to_string(edges_++));
    for (const int aggregation : aggregations_) join(cluster_, edge_, aggregation, wire_);
  }

  void start_pod(int ports) {
    if (ports > half_ * half_ && cores_.empty()) cores_ = add_switches(cluster_, "core", half_ * half_);
    aggregations_.clear();
    for (int j = 0; j < half_; ++j) {
      const int number = edges_ + j;  // a pod has as many of these as edge switches
      aggregations_.push_back(add_switch(cluster_, "aggregation" + std::to_string(number)));
      if (cores_.empty()) continue;
      for (int i = 0; i < half_; ++i)
        join(cluster_, aggregations_.back(),
             cores_[static_cast<std::size_t>(j) * static_cast<std::size_t>(half_) +
                    static_cast<std::size_t>(i)],
             wire_);
    }
  }

  const int half_;
  const NetworkWire wire_;
  Cluster& cluster_;
  std::vector<int> cores_;
  std::vector<int> aggregations_;  ///< of the current pod
  int edges_ = 0;                  ///< so far
  int edge_ = 0;                   ///< current one
  int edge_ports_ = 0;             ///< used ports of the current edge switch
};

void generate_fat_tree(const YamlNode& node, const ClusterSettings& settings, const NetworkWire& wire,
                       Cluster& cluster) {
  FatTree(arity(node, settings, cluster), wire, cluster).add();
}

const Registration<NetworkKind> kFatTree{
    network_kinds(),
    {.name = "fat_tree",
     .description =
         "k-ary fat tree: edge, aggregation and core switches with k ports, full bisection bandwidth",
     .value = {.keys = {"k"}, .generate = generate_fat_tree}}};

}  // namespace
}  // namespace stepcast
