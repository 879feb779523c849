#include "runner/lab/plan.hpp"

#include <map>
#include <regex>

#include "core/error.hpp"
#include "core/ranges.hpp"
#include "topologies/disjoint_groups.hpp"

namespace stepcast {
namespace {

constexpr std::size_t kMostHosts = 250;

[[noreturn]] void refuse(const Cluster& cluster, const std::string& why) {
  throw InputError(cluster.path + ": the lab cannot build cluster '" + cluster.specification + "': " + why);
}

void check_hosts(const Cluster& cluster) {
  static const std::regex kSpaceName("[[:alnum:]._][[:alnum:]._-]{0,99}");
  if (cluster.hosts.size() > kMostHosts)
    refuse(cluster, std::to_string(cluster.hosts.size()) + " hosts, at most " + std::to_string(kMostHosts));
  for (const Host& host : cluster.hosts)
    if (!std::regex_match(host.name, kSpaceName))
      refuse(cluster,
             "host name '" + host.name + "' has other characters than letters, digits, '.', '_', '-'");
  for (const Node& node : cluster.nodes)
    if (node.kind != NodeKind::kSocket && node.kind != NodeKind::kSwitch)
      refuse(cluster, "'" + node.name + "' is a " + to_text(node.kind) +
                          "; hosts of the lab have CPUs only, connected to switches");
}

/// A link between two nodes that are already connected is a second way.
void check_tree(const Cluster& cluster) {
  DisjointGroups groups(cluster.nodes.size());
  std::map<int, int> links;
  for (const Link& link : cluster.links) {
    if (!groups.join(link.a, link.b))
      refuse(cluster,
             "link '" + link.name +
                 "' is a second way between its ends; the lab builds trees (of leaf_spine: spines: 1)");
    for (const int end : {link.a, link.b})
      if (cluster.node(end).kind == NodeKind::kSocket && ++links[end] > 1)
        refuse(cluster, "host '" + cluster.node_name(end) + "' has more than one link");
  }
  for (const auto [i, node] : enumerated(cluster.nodes))
    if (node.kind == NodeKind::kSocket && !links.contains(static_cast<int>(i)))
      refuse(cluster, "host '" + node.name + "' has no link; ranks of one host need no lab: 'stepcast run'");
}

}  // namespace

std::string lab_prefix(const std::string& lab) {
  static const std::regex kName("[[:alnum:]]{1,16}");
  if (!std::regex_match(lab, kName))
    throw UsageError("the name of a lab has 1 to 16 letters and digits, got '" + lab + "'");
  return "stepcast-" + lab + "-";
}

LabPlan plan_lab(const Cluster& cluster, const std::string& lab) {
  check_hosts(cluster);
  check_tree(cluster);
  const std::string prefix = lab_prefix(lab);
  LabPlan plan;
  plan.lab = lab;
  plan.cluster = cluster.specification;
  plan.switches = prefix + "-switches";  // no host's name begins with '-'
  std::map<int, int> bridges;            // by node
  for (const auto [i, node] : enumerated(cluster.nodes)) {
    if (node.kind == NodeKind::kSwitch) {
      bridges[static_cast<int>(i)] = static_cast<int>(plan.bridges.size());
      plan.bridges.push_back("bridge" + std::to_string(plan.bridges.size()));
    } else {
      plan.hosts.push_back({node.name, prefix + node.name, "10.77.0." + std::to_string(plan.hosts.size() + 1),
                            cluster.host_of(static_cast<int>(i)).speed});
    }
  }
  for (const Link& link : cluster.links) {
    const std::string number = std::to_string(plan.links.size());
    const auto end = [&](int node, const char* side) -> LabEnd {
      if (const auto found = bridges.find(node); found != bridges.end())
        return {plan.switches, "port" + number + side, found->second};
      return {prefix + cluster.node_name(node), "eth0", -1};
    };
    plan.links.push_back({end(link.a, "a"), end(link.b, "b"), link.bandwidth});
  }
  plan.slowest_link = slowest_link(cluster);
  if (!cluster.links.empty()) plan.queue = cluster.links.front().queue;
  return plan;
}

}  // namespace stepcast
