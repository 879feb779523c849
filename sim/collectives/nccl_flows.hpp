#pragma once

#include <map>
#include <utility>
#include <vector>

#include "core/ranges.hpp"
#include "sim/collectives/algorithm.hpp"
#include "sim/collectives/double_tree.hpp"
#include "sim/collectives/nccl_tuning.hpp"

/// Bytes that a collective of NCCL moves between GPUs.
namespace stepcast {

/// All that one rank sends to another during the call.
struct NcclFlow {
  int from = 0;  ///< indices in the group
  int to = 0;
  Bytes payload;
};

/// Adds up what the ranks of one call send.
struct NcclFlowSums {
  const NcclGraph& graph;
  const CollectiveCall& call;

  void add_rings(CollectiveKind kind) {
    const bool broadcast = kind == CollectiveKind::kBroadcast;
    const double of_message = bus_factor(kind, graph.ranks);
    for (const NcclRing& ring : graph.rings)
      for (std::size_t i = 0; i < ring.order.size(); ++i) {
        const int to = ring.order[(i + 1) % ring.order.size()];
        if (!broadcast || to != call.root) add(ring.order[i], to, ring.share * of_message);
      }
  }

  void add_trees() {
    for (const NcclRing& ring : graph.rings) {
      std::vector<int> doors;
      for (std::size_t i = 0; i < ring.order.size(); ++i) {
        if (i == 0 || host(ring.order[i]) != host(ring.order[i - 1]))
          doors.push_back(ring.order[i]);
        else
          add_both_ways(ring.order[i - 1], ring.order[i], ring.share);
      }
      add_trees_over(doors, ring.share);
    }
  }

  void add_nvls() {
    std::vector<std::vector<int>> hosts(graph.nodes);
    for (int rank = 0; rank < graph.ranks; ++rank) hosts[host(rank)].push_back(rank);
    const std::size_t heads = hosts.front().size();
    for (const std::vector<int>& ranks : hosts)
      for (std::size_t i = 0; i < heads; ++i)
        add(ranks[i], ranks[(i + 1) % heads], 1.0 + 1.0 / static_cast<double>(heads));
    if (graph.nodes == 1) return;
    for (std::size_t head = 0; head < heads; ++head)
      add_trees_over(transformed(hosts, [head](const auto& ranks) { return ranks[head]; }),
                     1.0 / static_cast<double>(heads));
  }

  [[nodiscard]] std::vector<NcclFlow> flows() const {
    return transformed(parts, [this](const auto& one) {
      return NcclFlow{one.first.first, one.first.second, one.second * call.message};
    });
  }

  [[nodiscard]] int host(int rank) const { return graph.node_of_rank[rank]; }
  void add(int from, int to, double part) { parts[{from, to}] += part; }
  void add_both_ways(int a, int b, double part) {
    add(a, b, part);
    add(b, a, part);
  }
  void add_trees_over(const std::vector<int>& doors, double share) {
    const auto count = static_cast<int>(doors.size());
    for (int number = 0; number < count; ++number)
      for (const int tree : {0, 1})
        if (const int parent = tree_parent(tree, number, count); parent >= 0)
          add_both_ways(doors[number], doors[parent], 0.5 * share);
  }

  std::map<std::pair<int, int>, double> parts{};  ///< of the message, by ends
};

/// The flows of a collective with all channels together. S is the message, n the ranks, N the hosts.
///
/// - Ring: what Patarasuk & Yuan's algorithms send over every edge, 2 (n - 1)/n S of all-reduce,
///   (n - 1)/n S of all-gather and reduce-scatter; a broadcast sends S over every edge but the one that leads
///   back to its root.
/// - Tree: in every host a chain in the order of the ring, whose first GPU is the host's door to two binary
///   trees over the hosts, each of half the channels (`ncclGetDtree`); S up and S down every edge, in
///   proportion to the channels.
/// - NVLS: each GPU gives S to the switch to be added and S/n as the sum that the switch multiplies, and
///   takes as much. Written as a flow of (n + 1)/n S to the next GPU, which loads the same links in the same
///   directions; NVSwitches are one node of the cluster, and nothing else of them is modelled.
/// - NVLS tree: the same in every host, and each GPU is the door of its share of S to the two trees.
///
/// Holds: the payload of a ring sums up to its closed form; one rank sends nothing.
inline std::vector<NcclFlow> nccl_flows(const NcclGraph& graph, const NcclCost& choice, CollectiveKind kind,
                                        const CollectiveCall& call) {
  if (graph.ranks == 1) return {};
  NcclFlowSums flows{graph, call};
  if (choice.algorithm == NcclAlgorithm::kRing)
    flows.add_rings(kind);
  else if (choice.algorithm == NcclAlgorithm::kTree)
    flows.add_trees();
  else
    flows.add_nvls();
  return flows.flows();
}

}  // namespace stepcast
