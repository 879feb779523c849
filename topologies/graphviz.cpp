#include "topologies/graphviz.hpp"

namespace stepcast {
namespace {

std::string in_quotes(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    if (c == '\n')
      result += "\\n";
    else
      result += c;
  }
  return result + "\"";
}

const char* shape_of(NodeKind kind) {
  switch (kind) {
    case NodeKind::kSocket:
      return "box, style=filled, fillcolor=\"#e0e0e0\"";
    case NodeKind::kDevice:
      return "box, style=filled, fillcolor=\"#c7e3b4\"";
    case NodeKind::kPcieSwitch:
      return "hexagon";
    case NodeKind::kNvSwitch:
      return "hexagon, style=filled, fillcolor=\"#dcebd2\"";
    case NodeKind::kNic:
      return "box, style=rounded";
    case NodeKind::kSwitch:
      return "ellipse";
  }
  return "box";
}

const char* colour_of(LinkKind kind) {
  switch (kind) {
    case LinkKind::kNvLink:
      return "#4c9a2a";
    case LinkKind::kPcie:
      return "#555555";
    case LinkKind::kSmp:
      return "#b8860b";
    case LinkKind::kInfiniband:
      return "#1f5fa8";
    case LinkKind::kEthernet:
      return "#2a8a8a";
    case LinkKind::kNetwork:
      return "#000000";
  }
  return "#000000";
}

std::string node_text(const Cluster& cluster, const Node& node) {
  std::string label = node.name;
  if (node.host >= 0) {
    const std::string prefix = cluster.hosts[static_cast<std::size_t>(node.host)].name + "/";
    if (label.starts_with(prefix)) label = label.substr(prefix.size());
  }
  if (!node.device.empty()) label += "\n" + node.device;
  return in_quotes(node.name) + " [label=" + in_quotes(label) + ", shape=" + shape_of(node.kind) + "];\n";
}

}  // namespace

std::string to_graphviz(const Cluster& cluster) {
  std::string text = "graph " + in_quotes(cluster.name) + " {\n  node [fontname=\"sans-serif\"];\n" +
                     "  edge [fontname=\"sans-serif\", fontsize=10];\n";
  std::string network;
  std::vector<std::string> hosts(cluster.hosts.size());
  for (const Node& node : cluster.nodes) {
    if (node.host < 0)
      network += "  " + node_text(cluster, node);
    else
      hosts[static_cast<std::size_t>(node.host)] += "    " + node_text(cluster, node);
  }
  for (std::size_t i = 0; i < hosts.size(); ++i)
    text += "  subgraph " + in_quotes("cluster_" + cluster.hosts[i].name) +
            " {\n    label=" + in_quotes(cluster.hosts[i].name) + ";\n" + hosts[i] + "  }\n";
  text += network;
  for (const Link& link : cluster.links)
    text += "  " + in_quotes(cluster.node_name(link.a)) + " -- " + in_quotes(cluster.node_name(link.b)) +
            " [label=" + in_quotes(std::string(to_text(link.kind)) + "\n" + to_text(link.bandwidth)) +
            ", color=\"" + colour_of(link.kind) + "\"];\n";
  return text + "}\n";
}

}  // namespace stepcast
