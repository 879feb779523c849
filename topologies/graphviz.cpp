#include <array>

#include "core/table.hpp"
#include "topologies/cluster_text.hpp"

namespace stepcast {
namespace {

const char* shape_of(NodeKind kind) {
  constexpr std::array kShapes{"box, style=filled, fillcolor=\"#e0e0e0\"",      // socket
                               "box, style=filled, fillcolor=\"#c7e3b4\"",      // device
                               "hexagon",                                       // PCIe switch
                               "hexagon, style=filled, fillcolor=\"#dcebd2\"",  // NVSwitch
                               "box, style=rounded",                            // NIC
                               "ellipse"};                                      // switch
  return kShapes.at(static_cast<std::size_t>(kind));
}

const char* colour_of(LinkKind kind) {
  constexpr std::array kColours{"#000000", "#4c9a2a", "#555555",   // network, NVLink, PCIe
                                "#b8860b", "#2a8a8a", "#1f5fa8"};  // SMP, Ethernet, InfiniBand
  return kColours.at(static_cast<std::size_t>(kind));
}

}  // namespace

std::string to_graphviz(const Cluster& cluster) {
  std::string text = "graph " + in_double_quotes(cluster.name) + " {\n  node [fontname=\"sans-serif\"];\n" +
                     "  edge [fontname=\"sans-serif\", fontsize=10];\n";
  std::string network;
  std::vector<std::string> hosts(cluster.hosts.size());
  for (std::size_t i = 0; i < cluster.nodes.size(); ++i) {
    const Node& node = cluster.nodes[i];
    std::string label = cluster.name_in_host(static_cast<int>(i));
    if (!node.device.empty()) label += "\n" + node.device;
    std::string& group = node.host < 0 ? network : hosts[node.host];
    group += fmt::format("{}{} [label={}, shape={}];\n", node.host < 0 ? "  " : "    ",
                         in_double_quotes(node.name), in_double_quotes(label), shape_of(node.kind));
  }
  for (std::size_t i = 0; i < hosts.size(); ++i)
    text += "  subgraph " + in_double_quotes("cluster_" + cluster.hosts[i].name) +
            " {\n    label=" + in_double_quotes(cluster.hosts[i].name) + ";\n" + hosts[i] + "  }\n";
  text += network;
  for (const Link& link : cluster.links)
    text += "  " + in_double_quotes(cluster.node_name(link.a)) + " -- " +
            in_double_quotes(cluster.node_name(link.b)) +
            " [label=" + in_double_quotes(std::string(to_text(link.kind)) + "\n" + to_text(link.bandwidth)) +
            ", color=\"" + colour_of(link.kind) + "\"];\n";
  return text + "}\n";
}

}  // namespace stepcast
