#include "topologies/cluster_writer.hpp"

#include <algorithm>
#include <array>
#include <cassert>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

#include "topologies/explicit_parts.hpp"

namespace stepcast {
namespace {

constexpr int kRoundings = 4;  // neighbours of a quotient of which one is what was divided

/// The fewest digits that read back as the same number.
std::string number(double value) {
  std::array<char, 32> buffer{};
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value).ptr;
  return {buffer.data(), end};
}

using Units = std::vector<std::pair<double, std::string>>;

/// The shortest text that `parse` reads back as the same quantity.
template <class Parser>
std::string shortest(double value, const Units& units, Parser parse) {
  if (value == 0.0) return "0";
  std::string best = number(value) + units.front().second;
  for (const auto& [factor, unit] : units) {
    const std::string text = number(value / factor) + unit;
    if (parse(text).count() == value && text.size() < best.size()) best = text;
  }
  return best;
}

std::string text_of(BytesPerSecond rate) {
  static const Units kUnits{{1.0, "B/s"}, {1e3, "kB/s"}, {1e6, "MB/s"}, {1e9, "GB/s"}};
  return shortest(rate.count(), kUnits,
                  [](const std::string& text) { return parse_bytes_per_second(text, ""); });
}
std::string text_of(Bytes size) {
  static const Units kUnits{{1.0, "B"},   {1e6, "MB"},    {1e9, "GB"},
                            {1e12, "TB"}, {kMebi, "MiB"}, {kGibi, "GiB"}};
  return shortest(size.count(), kUnits, [](const std::string& text) { return parse_bytes(text, ""); });
}
std::string text_of(Seconds time) {
  static const Units kUnits{{1.0, "s"}, {1e-3, "ms"}, {1e-6, "us"}, {1e-9, "ns"}};
  return shortest(time.count(), kUnits, [](const std::string& text) { return parse_seconds(text, ""); });
}

/// The bandwidth of which `remaining` leaves what the link has: the shortest text of those that a reader's
/// product gives back digit by digit.
std::string whole_bandwidth(const Link& link) {
  if (link.remaining == 1.0) return text_of(link.bandwidth);
  const double quotient = link.bandwidth.count() / link.remaining;
  std::string best = text_of(BytesPerSecond(quotient));
  bool exact = quotient * link.remaining == link.bandwidth.count();
  for (const double end : {0.0, 2.0 * quotient}) {
    double whole = quotient;
    for (int step = 0; step < kRoundings; ++step) {
      whole = std::nextafter(whole, end);
      const std::string text = text_of(BytesPerSecond(whole));
      if (whole * link.remaining != link.bandwidth.count() || (exact && text.size() >= best.size())) continue;
      best = text;
      exact = true;
    }
  }
  return best;
}

/// A YAML scalar: plain where that is safe, else in double quotes.
std::string scalar(const std::string& text) {
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '/' || c == '.';
  };
  const bool word =
      !text.empty() && ((text[0] >= 'a' && text[0] <= 'z') || (text[0] >= 'A' && text[0] <= 'Z'));
  if (word && text != "null" && std::all_of(text.begin(), text.end(), plain)) return text;
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '\n') {
      quoted += "\\n";
      continue;
    }
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + "\"";
}

/// One host's nodes and links: ranges of the cluster's.
struct Section {
  std::size_t host = 0;
  std::size_t nodes_begin = 0, nodes_end = 0;
  std::size_t links_begin = 0, links_end = 0;
};

class Writer {
 public:
  explicit Writer(const Cluster& cluster) : cluster_(cluster) { find_sections(); }

  [[nodiscard]] std::string text() const {
    std::string out = "name: " + scalar(cluster_.name) + "\n";
    if (!cluster_.description.empty()) out += "description: " + scalar(cluster_.description) + "\n";
    if (cluster_.shared_cores > 0) out += "shared_cores: " + std::to_string(cluster_.shared_cores) + "\n";
    out += "hosts:\n";
    for (std::size_t i = 0; i < sections_.size();) {
      const std::size_t count = equal_hosts(i);
      out += host_text(sections_[i], count);
      i += count;
    }
    if (nodes_done_ < cluster_.nodes.size()) out += "switches:\n";
    for (std::size_t i = nodes_done_; i < cluster_.nodes.size(); ++i)
      out += "  - " + scalar(cluster_.nodes[i].name) + "\n";
    if (links_done_ < cluster_.links.size()) out += "links:\n";
    for (std::size_t i = links_done_; i < cluster_.links.size(); ++i)
      out += "  - " + link_text(cluster_.links[i], "") + "\n";
    return out + degraded_text();
  }

 private:
  [[nodiscard]] std::string prefix(std::size_t host) const { return cluster_.hosts[host].name + "/"; }
  [[nodiscard]] int host_of(int node) const { return cluster_.node(node).host; }

  void find_sections() {
    for (std::size_t host = 0; host < cluster_.hosts.size(); ++host) {
      Section section{host, nodes_done_, nodes_done_, links_done_, links_done_};
      const auto inside = [&](int node) { return host_of(node) == static_cast<int>(host); };
      assert(cluster_.hosts[host].node == static_cast<int>(nodes_done_));
      while (nodes_done_ < cluster_.nodes.size() && inside(static_cast<int>(nodes_done_))) ++nodes_done_;
      for (; links_done_ < cluster_.links.size(); ++links_done_) {
        const Link& link = cluster_.links[links_done_];
        if (!inside(link.a) || !inside(link.b) || !link.name.starts_with(prefix(host))) break;
      }
      section.nodes_end = nodes_done_;
      section.links_end = links_done_;
      sections_.push_back(section);
    }
    assert(std::all_of(cluster_.nodes.begin() + static_cast<std::ptrdiff_t>(nodes_done_),
                       cluster_.nodes.end(),
                       [](const Node& node) { return node.kind == NodeKind::kSwitch; }));
  }

  /// `text` without the prefix, where it has it.
  static std::string without(const std::string& text, const std::string& prefix) {
    return text.starts_with(prefix) ? text.substr(prefix.size()) : text;
  }

  [[nodiscard]] std::string link_text(const Link& link, const std::string& prefix) const {
    const std::string a = without(cluster_.node_name(link.a), prefix);
    const std::string b = without(cluster_.node_name(link.b), prefix);
    const std::string name = without(link.name, prefix);
    std::string text = "{";
    if (name != a + "-" + b) text += "name: " + scalar(name) + ", ";
    text += "between: [" + scalar(a) + ", " + scalar(b) + "]";
    if (link.kind != LinkKind::kNetwork) text += ", kind: " + key_of(link_kind_keys(), link.kind);
    text += ", bandwidth: " + whole_bandwidth(link) + ", latency: " + text_of(link.latency);
    if (link.queue != Queue::kFair) text += std::string(", queue: ") + to_text(link.queue);
    if (link.token_bucket > Bytes(0)) text += ", token_bucket: " + text_of(link.token_bucket);
    return text + "}";
  }

  [[nodiscard]] std::string degraded_text() const {
    std::string text;
    for (const Link& link : cluster_.links)
      if (link.remaining != 1.0)
        text += "  - {link: " + scalar(link.name) + ", factor: " + number(link.remaining) + "}\n";
    return text.empty() ? "" : "degraded_links:\n" + text;
  }

  [[nodiscard]] std::string node_text(const Node& node, const std::string& prefix) const {
    std::string text =
        "{name: " + scalar(without(node.name, prefix)) + ", kind: " + key_of(node_kind_keys(), node.kind);
    if (!node.device.empty()) text += ", device: " + scalar(node.device);
    return text + "}";
  }

  /// The entry of a host after its name and count.
  [[nodiscard]] std::string parts_text(const Section& section) const {
    const Host& host = cluster_.hosts[section.host];
    std::string text = "    cores: " + std::to_string(host.cores) + "\n";
    if (host.memory.count() > 0.0) text += "    memory: " + text_of(host.memory) + "\n";
    if (host.speed != 1.0) text += "    speed: " + number(host.speed) + "\n";
    if (cluster_.nodes[section.nodes_begin].name == host.name) return text;  // one node, which nobody lists
    text += "    nodes:\n";
    for (std::size_t i = section.nodes_begin; i < section.nodes_end; ++i)
      text += "      - " + node_text(cluster_.nodes[i], prefix(section.host)) + "\n";
    if (section.links_begin < section.links_end) text += "    links:\n";
    for (std::size_t i = section.links_begin; i < section.links_end; ++i)
      text += "      - " + link_text(cluster_.links[i], prefix(section.host)) + "\n";
    return text;
  }

  /// How many hosts from this one on are equal to it and are numbered 0, 1, 2, ...; else 1.
  [[nodiscard]] std::size_t equal_hosts(std::size_t first) const {
    const std::string& name = cluster_.hosts[first].name;
    if (!name.ends_with('0')) return 1;
    const std::string base = name.substr(0, name.size() - 1);
    const std::string parts = parts_text(sections_[first]);
    std::size_t count = 1;
    while (first + count < sections_.size() &&
           cluster_.hosts[first + count].name == base + std::to_string(count) &&
           parts_text(sections_[first + count]) == parts)
      ++count;
    return count;
  }

  [[nodiscard]] std::string host_text(const Section& section, std::size_t count) const {
    std::string name = cluster_.hosts[section.host].name;
    if (count == 1) return "  - name: " + scalar(name) + "\n" + parts_text(section);
    name.pop_back();
    return "  - name: " + scalar(name) + "\n    count: " + std::to_string(count) + "\n" + parts_text(section);
  }

  const Cluster& cluster_;
  std::vector<Section> sections_;
  std::size_t nodes_done_ = 0, links_done_ = 0;  ///< those that stand in a host's entry
};

}  // namespace

std::string to_yaml(const Cluster& cluster) { return Writer(cluster).text(); }

}  // namespace stepcast
