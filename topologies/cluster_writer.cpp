#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstddef>
#include <vector>

#include "core/number.hpp"
#include "core/table.hpp"
#include "topologies/cluster_text.hpp"
#include "topologies/explicit_parts.hpp"

namespace stepcast {
namespace {

constexpr int kRoundings = 4;  // adjacent doubles to try: one of them is the dividend

/// Bandwidth before degradation: the shortest text whose value times `remaining` is the link's bandwidth,
/// digit by digit.
std::string whole_bandwidth(const Link& link) {
  if (link.remaining == 1.0) return exact_text(link.bandwidth);
  const double quotient = link.bandwidth.count() / link.remaining;
  std::string best = exact_text(BytesPerSecond(quotient));
  bool exact = quotient * link.remaining == link.bandwidth.count();
  for (const double end : {0.0, 2.0 * quotient}) {
    double whole = quotient;
    for (int step = 0; step < kRoundings; ++step) {
      whole = std::nextafter(whole, end);
      const std::string text = exact_text(BytesPerSecond(whole));
      if (whole * link.remaining != link.bandwidth.count() || (exact && text.size() >= best.size())) continue;
      best = text;
      exact = true;
    }
  }
  return best;
}

/// A YAML scalar: plain if that is safe, else in double quotes.
std::string scalar(const std::string& text) {
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  const auto is_plain = [&](char c) {
    return is_letter(c) || (c >= '0' && c <= '9') || std::string_view("_-/.").find(c) != std::string::npos;
  };
  const bool word = !text.empty() && is_letter(text[0]) && std::ranges::all_of(text, is_plain);
  return word && text != "null" ? text : in_double_quotes(text);
}

/// `text` without the prefix, if it has it.
std::string without(const std::string& text, const std::string& prefix) {
  return text.starts_with(prefix) ? text.substr(prefix.size()) : text;
}

std::string node_text(const Node& node, const std::string& prefix) {
  std::string text = "{name: " + scalar(without(node.name, prefix)) + ", kind: " + key_of(node.kind);
  if (!node.device.empty()) text += ", device: " + scalar(node.device);
  return text + "}";
}

/// A key with a list, one entry per line; empty text for an empty list.
std::string list_text(const std::string& indent, const std::string& key,
                      const std::vector<std::string>& entries) {
  if (entries.empty()) return "";
  return indent + key + ":\n" + indent + "  - " + joined(entries, "\n" + indent + "  - ") + "\n";
}

/// Visits the nodes and links once; both are ordered by host.
struct Writer {
  const Cluster& cluster;

  std::string text() {
    std::string out = "name: " + scalar(cluster.name) + "\n";
    if (!cluster.description.empty()) out += "description: " + scalar(cluster.description) + "\n";
    if (cluster.shared_cores > 0) out += "shared_cores: " + std::to_string(cluster.shared_cores) + "\n";
    const Storage& storage = cluster.storage;
    if (storage != Storage{})
      out +=
          fmt::format("storage: {{host_rate: {}, rate: {}, capacity: {}}}\n", exact_text(storage.host_rate),
                      exact_text(storage.rate), exact_text(storage.capacity));
    out += "hosts:\n" + hosts_text();
    std::vector<std::string> switches, links, degraded;
    for (; next_node < cluster.nodes.size(); ++next_node) {
      assert(cluster.nodes[next_node].kind == NodeKind::kSwitch);
      switches.push_back(scalar(cluster.nodes[next_node].name));
    }
    for (; next_link < cluster.links.size(); ++next_link)
      links.push_back(link_text(cluster.links[next_link], ""));
    for (const Link& link : cluster.links)
      if (link.remaining != 1.0)
        degraded.push_back("{link: " + scalar(link.name) + ", factor: " + shortest_text(link.remaining) +
                           "}");
    return out + list_text("", "switches", switches) + list_text("", "links", links) +
           list_text("", "degraded_links", degraded);
  }

  /// Equal hosts with the numbers 0, 1, 2, ... are one entry.
  std::string hosts_text() {
    std::vector<std::string> parts;
    for (const Host& host : cluster.hosts) parts.push_back(parts_text(host, static_cast<int>(parts.size())));
    std::string text;
    for (std::size_t first = 0, count = 1; first < parts.size(); first += count) {
      std::string name = cluster.hosts[first].name;
      const std::string base = name.substr(0, name.size() - (name.ends_with('0') ? 1 : 0));
      count = 1;
      while (base != name && first + count < parts.size() && parts[first + count] == parts[first] &&
             cluster.hosts[first + count].name == base + std::to_string(count))
        ++count;
      text += "  - name: " + scalar(count == 1 ? name : base) + "\n" +
              (count == 1 ? "" : "    count: " + std::to_string(count) + "\n") + parts[first];
    }
    return text;
  }

  /// The entry of the next host after its name and count.
  std::string parts_text(const Host& host, int index) {
    const std::string prefix = host.name + "/";
    const auto inside = [&](int node) { return cluster.node(node).host == index; };
    assert(host.node == static_cast<int>(next_node));
    std::vector<std::string> nodes, links;
    for (; next_node < cluster.nodes.size() && inside(static_cast<int>(next_node)); ++next_node)
      nodes.push_back(node_text(cluster.nodes[next_node], prefix));
    for (; next_link < cluster.links.size(); ++next_link) {
      const Link& link = cluster.links[next_link];
      if (!inside(link.a) || !inside(link.b) || !link.name.starts_with(prefix)) break;
      links.push_back(link_text(link, prefix));
    }
    if (cluster.node_name(host.node) == host.name) nodes.clear();  // a host of one node has no list
    std::string text = "    cores: " + std::to_string(host.cores) + "\n";
    if (host.memory.count() > 0.0) text += "    memory: " + exact_text(host.memory) + "\n";
    if (host.tray > 0) text += "    tray: " + std::to_string(host.tray) + "\n";
    if (host.speed != 1.0) text += "    speed: " + shortest_text(host.speed) + "\n";
    return text + list_text("    ", "nodes", nodes) + list_text("    ", "links", links);
  }

  [[nodiscard]] std::string link_text(const Link& link, const std::string& prefix) const {
    const std::string a = without(cluster.node_name(link.a), prefix);
    const std::string b = without(cluster.node_name(link.b), prefix);
    const std::string name = without(link.name, prefix);
    std::string text = "{";
    if (name != a + "-" + b) text += "name: " + scalar(name) + ", ";
    text += "between: [" + scalar(a) + ", " + scalar(b) + "]";
    if (link.kind != LinkKind::kNetwork) text += ", kind: " + key_of(link.kind);
    text += ", bandwidth: " + whole_bandwidth(link) + ", latency: " + exact_text(link.latency);
    if (link.queue != Queue::kFair) text += std::string(", queue: ") + to_text(link.queue);
    if (link.token_bucket > Bytes(0)) text += ", token_bucket: " + exact_text(link.token_bucket);
    return text + "}";
  }

  std::size_t next_node = 0, next_link = 0;  ///< entries before are written
};

}  // namespace

std::string to_yaml(const Cluster& cluster) { return Writer{cluster}.text(); }

}  // namespace stepcast
