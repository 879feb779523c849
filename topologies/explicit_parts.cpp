#include "topologies/explicit_parts.hpp"

#include <array>
#include <vector>

#include "core/error.hpp"
#include "topologies/devices.hpp"
#include "topologies/host_parts.hpp"
#include "topologies/named.hpp"
#include "topologies/network.hpp"

namespace stepcast {
namespace {

/// The name of the device that a part is; "" of other parts.
std::string read_device(const YamlNode& item, NodeKind kind, const ClusterSettings& settings) {
  if (kind != NodeKind::kDevice) {
    if (item.has("device")) item.at("device").fail("only a node of the kind 'device' has one");
    return "";
  }
  const YamlNode device = item.at("device");
  try {
    return device_model(settings.text(device)).name;
  } catch (const InputError& error) {
    device.fail(error.what());
  }
}

}  // namespace

const std::map<std::string, NodeKind>& node_kind_keys() {
  static const std::map<std::string, NodeKind> keys{
      {"device", NodeKind::kDevice},     {"nic", NodeKind::kNic},
      {"nvswitch", NodeKind::kNvSwitch}, {"pcie_switch", NodeKind::kPcieSwitch},
      {"socket", NodeKind::kSocket},     {"switch", NodeKind::kSwitch}};
  return keys;
}

const std::map<std::string, LinkKind>& link_kind_keys() {
  static const std::map<std::string, LinkKind> keys{
      {"ethernet", LinkKind::kEthernet}, {"infiniband", LinkKind::kInfiniband},
      {"network", LinkKind::kNetwork},   {"nvlink", LinkKind::kNvLink},
      {"pcie", LinkKind::kPcie},         {"smp", LinkKind::kSmp}};
  return keys;
}

Link read_link(const YamlNode& item, const ClusterSettings& settings, const std::map<std::string, int>& nodes,
               const std::string& prefix) {
  item.allow_only({"name", "between", "kind", "bandwidth", "latency", "queue", "token_bucket"});
  const std::vector<YamlNode> ends = item.at("between").items();
  if (ends.size() != 2) item.at("between").fail("expected two nodes: [host0, switch]");
  std::array<int, 2> end{};
  for (std::size_t i = 0; i < 2; ++i) end[i] = find_named(ends[i], "node", nodes);
  if (end[0] == end[1]) item.at("between").fail("expected two different nodes");
  const std::string name = item.has("name") ? item.at("name").text() : ends[0].text() + "-" + ends[1].text();
  const LinkKind kind =
      item.has("kind") ? find_named(item.at("kind"), "kind of link", link_kind_keys()) : LinkKind::kNetwork;
  Link link{prefix + name,
            end[0],
            end[1],
            settings.bytes_per_second(item.at("bandwidth")),
            settings.seconds(item.at("latency")),
            kind};
  read_port(item, settings, link.queue, link.token_bucket);
  return link;
}

void add_explicit_parts(const YamlNode& node, const ClusterSettings& settings, int host, Cluster& cluster) {
  for (const std::string& key : host_part_keys())
    if (key != "nodes" && key != "links" && node.has(key))
      node.at(key).fail("stands beside 'nodes', which lists every part; expected one of both");
  std::map<std::string, NodeKind> kinds = node_kind_keys();
  kinds.erase("switch");
  const std::string prefix = cluster.hosts[static_cast<std::size_t>(host)].name + "/";
  std::map<std::string, int> parts;
  for (const YamlNode& item : node.at("nodes").items()) {
    item.allow_only({"name", "kind", "device"});
    const std::string part = item.at("name").text();
    const NodeKind kind = find_named(item.at("kind"), "kind of node", kinds);
    const std::string device = read_device(item, kind, settings);
    if (parts.contains(part)) item.at("name").fail("two nodes have the name '" + part + "'");
    if (!parts.empty()) {
      parts[part] = add_part(cluster, host, part, kind, device);
      continue;
    }
    if (kind != NodeKind::kSocket) item.at("kind").fail("expected the first node of a host to be a socket");
    parts[part] = cluster.hosts[static_cast<std::size_t>(host)].node;
    cluster.nodes[static_cast<std::size_t>(parts[part])].name = prefix + part;
  }
  if (parts.empty()) node.at("nodes").fail("expected at least one socket");
  if (!node.has("links")) return;
  for (const YamlNode& item : node.at("links").items())
    cluster.links.push_back(read_link(item, settings, parts, prefix));
}

}  // namespace stepcast
