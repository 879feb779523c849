#include "topologies/link_tiers.hpp"

#include <algorithm>
#include <utility>

#include "core/ranges.hpp"

namespace stepcast {

bool of_network(LinkKind kind) {
  return kind != LinkKind::kNvLink && kind != LinkKind::kPcie && kind != LinkKind::kSmp;
}

std::vector<int> tiers_of(const Cluster& cluster) {
  std::vector<int> tier = transformed(
      cluster.nodes, [](const Node& node) { return node.kind == NodeKind::kSwitch ? kNoTier : 0; });
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
  return transformed(cluster.links, [tier = tiers_of(cluster)](const Link& link) -> std::string {
    if (link.kind == LinkKind::kNvLink) return "nvlink";
    if (link.kind == LinkKind::kPcie) return "pcie";
    if (link.kind == LinkKind::kSmp) return "smp";
    return "network" + std::to_string(std::max({1, tier[link.a], tier[link.b]}));
  });
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
