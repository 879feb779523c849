#include "topologies/explicit_parts.hpp"

#include <vector>

#include "topologies/host_parts.hpp"
#include "topologies/network.hpp"

namespace stepcast {
namespace {

/// The kinds of a table by key.
template <class Kind, std::size_t N>
std::map<std::string, Kind> by_key(const std::array<EnumName<Kind>, N>& table) {
  std::map<std::string, Kind> kinds;
  for (const auto& [kind, name] : table) kinds.emplace(key_of(kind), kind);
  return kinds;
}

}  // namespace

Link read_link(const YamlNode& item, const ClusterSettings& settings, const std::map<std::string, int>& nodes,
               const std::string& prefix) {
  item.allow_only({"name", "between", "kind", "bandwidth", "latency", "queue", "token_bucket"});
  const std::vector<YamlNode> ends = item.at("between").items();
  if (ends.size() != 2) item.at("between").fail("expected two nodes: [host0, switch]");
  const int a = ends[0].named("node", nodes), b = ends[1].named("node", nodes);
  if (a == b) item.at("between").fail("expected two different nodes");
  const std::string name = item.has("name") ? item.at("name").text() : ends[0].text() + "-" + ends[1].text();
  Link link{prefix + name, a, b, {}, {}};
  if (item.has("kind")) link.kind = item.at("kind").named("kind of link", by_key(kLinkKinds));
  link.bandwidth = settings.value(item.at("bandwidth")).bytes_per_second();
  link.latency = settings.value(item.at("latency")).seconds();
  read_port(item, settings, link.queue, link.token_bucket);
  return link;
}

void add_explicit_parts(const YamlNode& node, const ClusterSettings& settings, int host, Cluster& cluster) {
  for (const std::string& key : host_part_keys())
    if (key != "nodes" && key != "links" && node.has(key))
      node.at(key).fail("cannot be combined with 'nodes', which lists every part");
  std::map<std::string, NodeKind> kinds = by_key(kNodeKinds);
  kinds.erase(key_of(NodeKind::kSwitch));  // of the network
  HostBuilder builder(cluster, host);
  std::map<std::string, int> parts;
  for (const YamlNode& item : node.at("nodes").items()) {
    item.allow_only({"name", "kind", "device"});
    const std::string part = item.at("name").text();
    const NodeKind kind = item.at("kind").named("kind of node", kinds);
    const bool is_device = kind == NodeKind::kDevice;
    if (!is_device && item.has("device")) item.at("device").fail("only a node of the kind 'device' has one");
    const std::string device = is_device ? device_at(item.at("device"), settings).name : "";
    if (parts.contains(part)) item.at("name").fail("two nodes have the name '" + part + "'");
    if (!parts.empty()) {
      parts[part] = builder.add(part, kind, device);
      continue;
    }
    if (kind != NodeKind::kSocket) item.at("kind").fail("expected the first node of a host to be a socket");
    parts[part] = builder.name_first_socket(part);
  }
  if (parts.empty()) node.at("nodes").fail("expected at least one socket");
  for (const YamlNode& item : node.items("links"))
    cluster.links.push_back(read_link(item, settings, parts, builder.host().name + "/"));
}

}  // namespace stepcast
