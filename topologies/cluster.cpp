#include "topologies/cluster.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>

#include "sim/core/error.hpp"
#include "sim/core/file.hpp"
#include "topologies/network.hpp"

namespace stepcast {

Registry<NetworkKind>& network_kinds() {
  static Registry<NetworkKind> registry("kind of network");
  return registry;
}

std::string Cluster::node_name(int node) const {
  const auto index = static_cast<std::size_t>(node);
  return index < hosts.size() ? hosts[index].name : switches[index - hosts.size()];
}

namespace {

/// One entry of `hosts`: a host, or `count` equal ones that are numbered from 0.
void read_hosts(const YamlNode& node, const ClusterSettings& settings, Cluster& cluster) {
  node.allow_only({"name", "count", "cores", "memory", "speed"});
  Host host;
  host.name = node.has("name") ? node.at("name").text() : "host";
  if (node.has("cores")) host.cores = static_cast<int>(settings.integer(node.at("cores"), 1));
  if (node.has("memory")) host.memory = settings.bytes(node.at("memory"));
  if (node.has("speed")) host.speed = settings.number(node.at("speed"));
  if (!(host.speed > 0.0)) node.at("speed").fail("expected a factor above 0");
  const bool numbered = node.has("count");
  const long long count = numbered ? settings.integer(node.at("count"), 1) : 1;
  for (long long i = 0; i < count; ++i) {
    cluster.hosts.push_back(host);
    if (numbered) cluster.hosts.back().name += std::to_string(i);
  }
}

/// Node indices by name. \throws InputError when a name stands twice
std::map<std::string, int> name_nodes(const YamlNode& node, const Cluster& cluster) {
  std::map<std::string, int> result;
  for (int i = 0; i < cluster.node_count(); ++i)
    if (!result.emplace(cluster.node_name(i), i).second)
      node.fail("two nodes have the name '" + cluster.node_name(i) + "'");
  return result;
}

void read_links(const YamlNode& node, const ClusterSettings& settings, Cluster& cluster) {
  const std::map<std::string, int> nodes = name_nodes(node, cluster);
  std::vector<std::string> known;
  known.reserve(nodes.size());
  for (const auto& [name, index] : nodes) known.push_back(name);
  for (const YamlNode& item : node.at("links").items()) {
    item.allow_only({"name", "between", "bandwidth", "latency"});
    const std::vector<YamlNode> ends = item.at("between").items();
    if (ends.size() != 2) item.at("between").fail("expected two nodes: [host0, switch]");
    std::array<int, 2> end{};
    for (std::size_t i = 0; i < 2; ++i) {
      const auto found = nodes.find(ends[i].text());
      if (found == nodes.end()) ends[i].fail(unknown_name("node", ends[i].text(), known));
      end[i] = found->second;
    }
    const std::string name =
        item.has("name") ? item.at("name").text() : ends[0].text() + "-" + ends[1].text();
    cluster.links.push_back({name, end[0], end[1], settings.bytes_per_second(item.at("bandwidth")),
                             settings.seconds(item.at("latency"))});
  }
}

/// Every link can carry bytes, names are unique, and every host reaches every other.
void check_network(const YamlNode& node, const Cluster& cluster) {
  std::map<std::string, int> names;
  std::vector<int> root(static_cast<std::size_t>(cluster.node_count()));
  std::iota(root.begin(), root.end(), 0);
  const auto find = [&](int i) {
    while (root[static_cast<std::size_t>(i)] != i) i = root[static_cast<std::size_t>(i)];
    return i;
  };
  name_nodes(node, cluster);
  for (const Link& link : cluster.links) {
    if (++names[link.name] > 1) node.fail("two links have the name '" + link.name + "'");
    if (!(link.bandwidth.count() > 0.0)) node.fail("link '" + link.name + "': expected a bandwidth above 0");
    if (link.latency.count() < 0.0) node.fail("link '" + link.name + "': expected a latency of at least 0");
    root[static_cast<std::size_t>(find(link.a))] = find(link.b);
  }
  for (int host = 1; host < static_cast<int>(cluster.hosts.size()); ++host)
    if (find(host) != find(0))
      node.fail("no links lead from host '" + cluster.node_name(0) + "' to host '" + cluster.node_name(host) +
                "'");
}

void read_network(const YamlNode& node, const ClusterSettings& settings, Cluster& cluster) {
  if (node.has("network")) {
    const YamlNode network = node.at("network");
    if (node.has("links") || node.has("switches"))
      network.fail("stands beside 'links' or 'switches'; expected one of both");
    const YamlNode kind = network.at("kind");
    const std::vector<std::string> known = network_kinds().names();
    if (std::find(known.begin(), known.end(), kind.text()) == known.end())
      kind.fail(unknown_name("kind of network", kind.text(), known));
    network_kinds().find(kind.text()).generate(network, settings, cluster);
  } else {
    if (node.has("switches"))
      for (const YamlNode& item : node.at("switches").items()) cluster.switches.push_back(item.text());
    if (node.has("links")) read_links(node, settings, cluster);
  }
  check_network(node, cluster);
}

}  // namespace

Cluster load_cluster(const std::string& specification) {
  ClusterSettings settings(specification);
  Cluster cluster;
  cluster.specification = specification;
  cluster.path = find_resource("topologies", settings.file(), ".yaml").string();
  const YamlNode node = YamlNode::load(cluster.path);
  node.allow_only({"name", "description", "settings", "hosts", "switches", "links", "network"});
  settings.read_defaults(node);
  cluster.name = node.at("name").text();
  if (node.has("description")) cluster.description = node.at("description").text();
  const YamlNode hosts = node.at("hosts");
  if (hosts.is_sequence())
    for (const YamlNode& item : hosts.items()) read_hosts(item, settings, cluster);
  else
    read_hosts(hosts, settings, cluster);
  if (cluster.hosts.empty()) hosts.fail("expected at least one host");
  read_network(node, settings, cluster);
  return cluster;
}

std::vector<int> place_ranks(const Cluster& cluster, int world_size) {
  const int hosts = static_cast<int>(cluster.hosts.size());
  const int per_host = (world_size + hosts - 1) / hosts;
  std::vector<int> result;
  result.reserve(static_cast<std::size_t>(world_size));
  for (int rank = 0; rank < world_size; ++rank) result.push_back(rank / per_host);
  return result;
}

}  // namespace stepcast
