#include "topologies/link_tiers.hpp"

#include <algorithm>
#include <utility>

namespace stepcast {

bool of_network(LinkKind kind) {
  return kind == LinkKind::kNetwork || kind == LinkKind::kEthernet || kind == LinkKind::kInfiniband ||
         kind == LinkKind::kRoce;
}

std::vector<int> tiers_of(const Cluster& cluster) {
  std::vector<int> tier;
  for (const Node& node : cluster.nodes) tier.push_back(node.kind == NodeKind::kSwitch ? kNoTier : 0);
  for (bool changed = true; changed;) {
    changed = false;
    for (const Link& link : cluster.links)
      for (const auto& [from, to] : {std::pair(link.a, link.b), std::pair(link.b, link.a)}) {
        const int through = tier[from] + 1;
        int& known = tier[to];
        if (!of_network(link.kind) || through >= known) continue;
        known = through;
        changed = true;
      }
  }
  return tier;
}

std::vector<std::string> link_tiers(const Cluster& cluster) {
  const std::vector<int> tier = tiers_of(cluster);
  std::vector<std::string> result;
  result.reserve(cluster.links.size());
  for (const Link& link : cluster.links) {
    const int upper = std::max({1, tier[link.a], tier[link.b]});
    result.push_back(link.kind == LinkKind::kNvLink ? "nvlink"
                     : link.kind == LinkKind::kPcie ? "pcie"
                     : link.kind == LinkKind::kSmp  ? "smp"
                                                    : "network" + std::to_string(upper));
  }
  return result;
}

bool scale_links(Cluster& cluster, const std::string& which, double factor) {
  const std::vector<std::string> tiers = link_tiers(cluster);
  bool any = false;
  for (std::size_t i = 0; i < tiers.size(); ++i) {
    Link& link = cluster.links[i];
    if (tiers[i] != which && link.name != which) continue;
    link.bandwidth = factor * link.bandwidth;
    link.scale *= factor;
    any = true;
  }
  return any;
}

}  // namespace stepcast
