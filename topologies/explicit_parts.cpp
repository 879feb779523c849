#include "topologies/explicit_parts.hpp"

#include <vector>

#include "topologies/host_parts.hpp"
#include "topologies/network.hpp"

namespace stepcast {
namespace {

/// All kinds, by key.
template <class Kind>
std::map<std::string, Kind> kinds_to(Kind last) {
  std::map<std::string, Kind> kinds;
  for (int i = 0; i <= static_cast<int>(last); ++i)
    kinds.emplace(key_of(static_cast<Kind>(i)), static_cast<Kind>(i));
  return kinds;
}

}  // namespace

Link read_link(const YamlNode& item, const ClusterSettings& settings, const std::map<std::string, int>& nodes,
               const std::string& prefix) {
  item.allow_only({"name", "between", "kind", "bandwidth", "latency", "queue", "token_bucket"});
  const std::vector<YamlNode> ends = item.at("between").items();
  if (ends.size() != 2) item.at("between").fail("expected two nodes: [host0, switch]");
  const int a = ends[0].named("node", nodes);
  const int b = ends[1].named("node", nodes);
  if (a == b) item.at("between").fail("expected two different nodes");
  const std::string name = item.has("name") ? item.at("name").text() : ends[0].text() + "-" + ends[1].text();
  Link link{prefix + name, a, b, {}, {}};
  if (item.has("kind")) link.kind = item.at("kind").named("kind of link", kinds_to(LinkKind::kRoce));
  link.bandwidth = settings.bytes_per_second(item.at("bandwidth"));
  link.latency = settings.seconds(item.at("latency"));
  read_port(item, settings, link.queue, link.token_bucket);
  return link;
}

void add_explicit_parts(const YamlNode& node, const ClusterSettings& settings, int host, Cluster& cluster) {
  for (const std::string& key : host_part_keys())
    if (key != "nodes" && key != "links" && node.has(key))
      node.at(key).fail("cannot be combined with 'nodes', which lists every part");
  const std::map<std::string, NodeKind> kinds = kinds_to(NodeKind::kNic);  // kinds inside a host
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
  if (!node.has("links")) return;
  for (const YamlNode& item : node.at("links").items())
    cluster.links.push_back(read_link(item, settings, parts, builder.host().name + "/"));
}

}  // namespace stepcast
