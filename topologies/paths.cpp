#include "topologies/paths.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <queue>

namespace stepcast {
namespace {

struct Arrival {
  Length length;
  int node = 0;
  // NOLINTNEXTLINE(modernize-use-nullptr): false alarm
  friend auto operator<=>(const Arrival& a, const Arrival& b) = default;
};

constexpr double kFemto = 1e15;
constexpr double kPico = 1e12;
const Length kUnreached{std::numeric_limits<int>::max(), 0, 0, 0, 0};

Length length_of(const Link& link) {
  return {0, std::llround(kFemto * link.remaining / link.bandwidth.count()), 1,
          std::llround(kPico * link.latency.count()), 0};
}

Length operator+(const Length& a, const Length& b) {
  return {a.through_places + b.through_places, a.cost + b.cost, a.links + b.links,
          a.latency_ps + b.latency_ps, a.other_ports + b.other_ports};
}

}  // namespace

Paths::Paths(const Cluster& cluster)
    : cluster_(cluster),
      ways_(cluster.nodes.size()),
      place_number_(cluster.nodes.size(), -1),
      ports_(cluster.hosts.size()),
      is_port_(cluster.links.size()),
      left_(cluster.nodes.size(), kUnreached) {
  for (std::size_t i = 0; i < cluster.links.size(); ++i) {
    const Link& link = cluster.links[i];
    const Length length = length_of(link);
    ways_[static_cast<std::size_t>(link.a)].push_back({static_cast<int>(i), link.b, length});
    ways_[static_cast<std::size_t>(link.b)].push_back({static_cast<int>(i), link.a, length});
  }
  int number = 0;
  for (const int place : cluster.places()) place_number_[static_cast<std::size_t>(place)] = number++;
  number = 0;
  for (std::size_t i = 0; i < cluster.nodes.size(); ++i) {
    if (cluster.nodes[i].host >= 0) continue;
    for (const Way& way : ways_[i])
      if (const int host = node(way.to).host; host >= 0) {
        ports_[static_cast<std::size_t>(host)].push_back({way.to, way.link, number++});
        is_port_[static_cast<std::size_t>(way.link)] = true;
      }
  }
}

Path Paths::between(int from, int to) const {
  Path path;
  if (from != to && (search(from, to, false) || search(from, to, true))) path = walk(from, to);
  return path;
}

Length Paths::left_by(const Way& way, int to) const {
  Length length = left(way.to) + way.length;
  if (way.to != to && place_number_[static_cast<std::size_t>(way.to)] >= 0) ++length.through_places;
  const bool comes_in = is_port_[static_cast<std::size_t>(way.link)] && node(way.to).host == node(to).host;
  if (comes_in && entry_ != nullptr && way.link != entry_->link) ++length.other_ports;
  return length;
}

/// Dijkstra's algorithm from the destination until the start is reached.
bool Paths::search(int from, int to, bool through_hosts) const {
  for (const int node : visited_) left(node) = kUnreached;
  visited_.assign(1, to);
  entry_ = nullptr;
  left(to) = {};
  std::priority_queue<Arrival, std::vector<Arrival>, std::greater<>> open;
  open.push({{}, to});
  while (!open.empty() && open.top().node != from) {
    const Arrival here = open.top();
    open.pop();
    if (left(here.node) < here.length) continue;
    for (const Way& way : ways_[static_cast<std::size_t>(here.node)]) {
      const int host = node(way.to).host;
      if (!through_hosts && host >= 0 && host != node(from).host && host != node(to).host) continue;
      const bool comes_in = host < 0 && node(here.node).host >= 0 && node(here.node).host == node(to).host;
      if (comes_in && entry_ == nullptr) entry_ = &entry_of(to);
      const Length length = left_by({way.link, here.node, way.length}, to);
      if (!(length < left(way.to))) continue;
      if (left(way.to) == kUnreached) visited_.push_back(way.to);
      left(way.to) = length;
      open.push({length, way.to});
    }
  }
  return !open.empty();
}

/// All that are equally near have been reached when the search leaves the host by the first of them.
const Paths::Port& Paths::entry_of(int to) const {
  Length least = kUnreached;
  std::vector<const Port*> nearest;
  for (const Port& port : ports_[static_cast<std::size_t>(node(to).host)]) {
    if (left(port.node) == kUnreached || left(port.node) > least) continue;
    if (left(port.node) < least) nearest.clear();
    least = left(port.node);
    nearest.push_back(&port);
  }
  return *nearest[static_cast<std::size_t>(place_number(to)) % nearest.size()];
}

/// From the start to ever nearer nodes.
Path Paths::walk(int from, int to) const {
  const int place = place_number(to);
  int port = entry_ == nullptr ? 0 : entry_->number;
  Path path;
  std::vector<const Way*> equal;
  for (int at = from; at != to;) {
    equal.clear();
    for (const Way& way : ways_[static_cast<std::size_t>(at)])
      if (left(way.to) != kUnreached && left_by(way, to) == left(at)) equal.push_back(&way);
    const auto choices = static_cast<int>(equal.size());
    const bool in_network = node(at).host < 0 && node(equal.front()->to).host < 0;
    const Way& way = *equal[static_cast<std::size_t>((in_network ? port : place) % choices)];
    if (in_network) port /= choices;
    path.push_back({way.link, cluster_.links[static_cast<std::size_t>(way.link)].a == at});
    at = way.to;
  }
  return path;
}

int switches_crossed(const Cluster& cluster, const Path& path) {
  int switches = 0;
  for (const Hop& hop : path) {
    const Link& link = cluster.links[static_cast<std::size_t>(hop.link)];
    const int at = hop.forward ? link.b : link.a;
    if (cluster.node(at).kind == NodeKind::kSwitch) ++switches;
  }
  return switches;
}

Seconds latency(const Cluster& cluster, const Path& path) {
  Seconds sum{0};
  for (const Hop& hop : path) sum += cluster.links[static_cast<std::size_t>(hop.link)].latency;
  return sum;
}

BytesPerSecond bandwidth(const Cluster& cluster, const Path& path) {
  BytesPerSecond least = cluster.links[static_cast<std::size_t>(path.front().link)].bandwidth;
  for (const Hop& hop : path)
    least = std::min(least, cluster.links[static_cast<std::size_t>(hop.link)].bandwidth);
  return least;
}

}  // namespace stepcast
