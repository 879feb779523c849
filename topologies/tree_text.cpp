#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "core/number.hpp"
#include "core/ranges.hpp"
#include "core/table.hpp"
#include "topologies/cluster_text.hpp"
#include "topologies/devices.hpp"
#include "topologies/link_tiers.hpp"

namespace stepcast {
namespace {

constexpr int kMaxTreeLevels = 4;  // of PCIe switches; a file may join them to a ring

/// `gpu0 .. gpu7`; of one or two names these, and all of a group with gaps.
std::string range_of(const std::vector<std::string>& names) {
  const auto number = [](const std::string& name) {
    return number_in<int>(std::string_view(name).substr(name.find_last_not_of("0123456789") + 1))
        .value_or(-1);
  };
  const int steps = number(names.back()) - number(names.front());
  if (names.size() > 2 && steps > 0 && steps != static_cast<int>(names.size()) - 1) return joined(names);
  if (names.size() > 2) return names.front() + " .. " + names.back();
  return names.size() == 2 ? names[0] + ", " + names[1] : names.front();
}

/// Text of a host.
class HostText {
 public:
  explicit HostText(const Cluster& cluster) : cluster_(cluster), links_of_(cluster.nodes.size()) {
    for (const Link& link : cluster.links) {
      links_of_[link.a].push_back(&link);
      links_of_[link.b].push_back(&link);
    }
    for (std::size_t i = 0; i < cluster.nodes.size(); ++i)
      if (cluster.nodes[i].host >= 0) nodes_of_[cluster.nodes[i].host].push_back(static_cast<int>(i));
  }

  /// Text after the host's name, the same for equal hosts. \param with_switches include names of switches
  [[nodiscard]] std::string text(int host, bool with_switches) const {
    const Host& owner = cluster_.hosts[host];
    std::string out =
        summary(owner) + (nodes_of_.at(host).size() == 1 ? uplinks(owner.node, with_switches) : "") + "\n";
    if (nodes_of_.at(host).size() == 1) return out;
    std::set<int> seen;
    for (const int node : nodes_of_.at(host))
      if (cluster_.node(node).kind == NodeKind::kSocket) add_tree(node, nullptr, 1, with_switches, seen, out);
    for (const int node : nodes_of_.at(host))  // nodes without PCIe
      if (!seen.contains(node) && cluster_.node(node).kind != NodeKind::kNvSwitch)
        add_tree(node, nullptr, 1, with_switches, seen, out);
    return out + pairs_text(host, LinkKind::kSmp) + nvlink_text(host);
  }

 private:
  static int other_end(const Link& link, int node) { return link.a == node ? link.b : link.a; }

  [[nodiscard]] std::string summary(const Host& host) const {
    std::string text = counted(host.cores, "core");
    if (host.memory.count() > 0.0) text += ", " + to_text(host.memory);
    std::map<std::string, std::size_t> devices;
    for (const int device : host.devices) ++devices[cluster_.node(device).device];
    for (const auto& [device, count] : devices) text += ", " + std::to_string(count) + " " + device;
    if (!host.nics.empty()) text += ", " + counted(host.nics.size(), "NIC");
    return host.speed == 1.0 ? text : text + fmt::format(", speed {:g}", host.speed);
  }

  /// ` -> leaf0, InfiniBand 48.0 GB/s` for every link of a node to the network.
  [[nodiscard]] std::string uplinks(int node, bool with_switches) const {
    std::string text;
    for (const Link* link : links_of_[node]) {
      const int other = other_end(*link, node);
      if (cluster_.node(other).host == cluster_.node(node).host) continue;
      text += " -> " + (with_switches ? cluster_.node_name(other) + ", " : "") + to_text(link->kind) + " " +
              to_text(link->bandwidth);
    }
    return text;
  }

  /// Adds one line for the node and, indented, the nodes below it by PCIe.
  void add_tree(int node, const Link* above, int depth, bool with_switches, std::set<int>& seen,
                std::string& out) const {
    if (!seen.insert(node).second) return;
    out += std::string(2 * static_cast<std::size_t>(depth), ' ') + cluster_.name_in_host(node);
    if (above != nullptr) out += "  " + std::string(to_text(above->kind)) + " " + to_text(above->bandwidth);
    out += uplinks(node, with_switches) + "\n";
    std::vector<std::pair<int, const Link*>> below;
    for (const Link* link : links_below(node))
      below.emplace_back(first_end(*link, node, kMaxTreeLevels), link);
    std::ranges::sort(below);
    for (const auto& [order, link] : below)
      add_tree(other_end(*link, node), link, depth + 1, with_switches, seen, out);
  }

  /// PCIe links of a node within its host, except to sockets.
  [[nodiscard]] std::vector<const Link*> links_below(int node) const {
    std::vector<const Link*> below;
    for (const Link* link : links_of_[node]) {
      const Node& other = cluster_.node(other_end(*link, node));
      if (link->kind == LinkKind::kPcie && other.host == cluster_.node(node).host &&
          other.kind != NodeKind::kSocket)
        below.push_back(link);
    }
    return below;
  }

  /// The first device or NIC below a link, which orders the tree.
  [[nodiscard]] int first_end(const Link& link, int above, int levels) const {
    const int node = other_end(link, above);
    if (cluster_.node(node).kind != NodeKind::kPcieSwitch || levels == 0) return node;
    int first = static_cast<int>(cluster_.nodes.size());
    for (const Link* below : links_below(node))
      if (below != &link) first = std::min(first, first_end(*below, node, levels - 1));
    return first;
  }

  /// `  SMP 20.0 GB/s: socket0-socket1`; pairs of one bandwidth share a line.
  [[nodiscard]] std::string pairs_text(int host, LinkKind kind) const {
    std::vector<std::pair<std::string, std::string>> lines;  // kind and rate, pairs
    for (const int node : nodes_of_.at(host))
      for (const Link* link : links_of_[node]) {
        const int other = other_end(*link, node);
        const bool is_switch = cluster_.node(other).kind == NodeKind::kNvSwitch ||
                               cluster_.node(node).kind == NodeKind::kNvSwitch;
        if (link->a != node || link->kind != kind || cluster_.node(other).host != host || is_switch) continue;
        lines.emplace_back(to_text(kind) + link_count(*link) + " " + to_text(link->bandwidth),
                           cluster_.name_in_host(node) + "-" + cluster_.name_in_host(other));
      }
    std::string text;
    for (const auto& [what, pairs] : grouped(lines, [](const auto& line) { return line.first; })) {
      constexpr std::size_t kMost = 64;  // of eight GPUs with all their neighbours
      std::vector<std::string> names = transformed(pairs, [](const auto* one) { return one->second; });
      if (names.size() > kMost) names.resize(3);
      text += "  " + what + ": " + joined(names) +
              (pairs.size() > kMost ? fmt::format(" and {} more", pairs.size() - names.size()) : "") + "\n";
    }
    return text;
  }

  /// ` (NV12)` for NVLinks of a known device.
  [[nodiscard]] std::string link_count(const Link& link) const {
    if (link.kind != LinkKind::kNvLink) return "";
    const Node& a = cluster_.node(link.a);
    const std::string device = a.device.empty() ? cluster_.node(link.b).device : a.device;
    if (device.empty()) return "";
    const BytesPerSecond one = device_model(device).links.nvlink_bandwidth;
    const double count = one.count() > 0.0 ? link.bandwidth / one : 0.0;
    if (count < 0.5 || std::abs(count - std::round(count)) > 1e-6) return "";
    return " (NV" + std::to_string(std::lround(count)) + ")";
  }

  /// Devices at NVSwitches by bandwidth, then direct links.
  [[nodiscard]] std::string nvlink_text(int host) const {
    std::map<std::string, std::vector<std::string>> at_switch;
    for (const int node : cluster_.hosts[host].devices)
      for (const Link* link : links_of_[node])
        if (cluster_.node(other_end(*link, node)).kind == NodeKind::kNvSwitch)
          at_switch["NVSwitch" + link_count(*link) + ", " + to_text(link->bandwidth) + " each"].push_back(
              cluster_.name_in_host(node));
    std::string text;
    for (const auto& [what, devices] : at_switch) text += "  " + range_of(devices) + ": " + what + "\n";
    return text + pairs_text(host, LinkKind::kNvLink);
  }

  const Cluster& cluster_;
  std::vector<std::vector<const Link*>> links_of_;  ///< by node
  std::map<int, std::vector<int>> nodes_of_;        ///< by host
};

std::string hosts_text(const Cluster& cluster) {
  const HostText hosts(cluster);
  const auto count = static_cast<int>(cluster.hosts.size());
  std::string out;
  for (int first = 0; first < count;) {
    const std::string text = hosts.text(first, false);
    int last = first;
    while (last + 1 < count && hosts.text(last + 1, false) == text) ++last;
    const int equal = last - first + 1;
    out += cluster.hosts[first].name;
    if (equal > 1) out += fmt::format(" .. {} ({} hosts like this)", cluster.hosts[last].name, equal);
    out += ": " + (equal == 1 ? hosts.text(first, true) : text);
    first = last + 1;
  }
  return out;
}

/// Links from a tier to the one below or above: number and total bandwidth.
struct Bundle {
  std::size_t links = 0;
  BytesPerSecond bandwidth;
  std::set<std::string> what;  ///< `InfiniBand 48.0 GB/s`
  void add(const Link& link) {
    ++links;
    bandwidth += link.bandwidth;
    what.insert(std::string(to_text(link.kind)) + " " + to_text(link.bandwidth));
  }
  [[nodiscard]] std::string text() const { return counted(links, "link") + " (" + joined(what) + ")"; }
};

std::string network_text(const Cluster& cluster) {
  const std::vector<int> tier = tiers_of(cluster);
  std::map<int, std::vector<std::string>> switches;
  std::map<int, Bundle> down;
  std::map<int, Bundle> up;
  for (std::size_t i = 0; i < cluster.nodes.size(); ++i)
    if (tier[i] > 0 && tier[i] < kNoTier) switches[tier[i]].push_back(cluster.nodes[i].name);
  for (const Link& link : cluster.links) {
    const auto [low, high] = std::minmax({tier[link.a], tier[link.b]});
    if (!of_network(link.kind) || low == high) continue;
    down[high].add(link);
    up[low].add(link);
  }
  if (switches.empty()) return "";
  std::string text = "network: " + counted(cluster.hosts.size(), "host") + ", " +
                     counted(cluster.places().size(), cluster.has_devices() ? "device" : "place") + "\n";
  for (const auto& [number, names] : switches) {
    text += "  tier " + std::to_string(number) + ": " + counted(names.size(), "switch") + " (" +
            range_of(names) + "), " + down[number].text() + " down";
    if (up.contains(number))
      text += ", " + up[number].text() + " up, oversubscription " +
              fmt::format("{:.3g}:1", down[number].bandwidth / up[number].bandwidth);
    text += "\n";
  }
  return text;
}

}  // namespace

std::string tree_text(const Cluster& cluster) {
  std::string text = cluster.name;
  if (!cluster.description.empty()) text += ": " + cluster.description;
  return text + "\n" + hosts_text(cluster) + network_text(cluster);
}

}  // namespace stepcast
