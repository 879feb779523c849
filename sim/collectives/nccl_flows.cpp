#include "sim/collectives/nccl_flows.hpp"

#include <map>
#include <utility>

#include "core/ranges.hpp"
#include "sim/collectives/double_tree.hpp"

namespace stepcast {
namespace {

struct Flows {
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

}  // namespace

std::vector<NcclFlow> nccl_flows(const NcclGraph& graph, const NcclCost& choice, CollectiveKind kind,
                                 const CollectiveCall& call) {
  if (graph.ranks == 1) return {};
  Flows flows{graph, call};
  if (choice.algorithm == NcclAlgorithm::kRing)
    flows.add_rings(kind);
  else if (choice.algorithm == NcclAlgorithm::kTree)
    flows.add_trees();
  else
    flows.add_nvls();
  return flows.flows();
}

}  // namespace stepcast
