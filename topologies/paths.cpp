#include "topologies/paths.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "core/ranges.hpp"

namespace stepcast {
namespace {

constexpr double kFemto = 1e15, kPico = 1e12;
constexpr Length kUnreached = Length::unreached();

}  // namespace

Length::Length(const Link& link)
    : key_((static_cast<Key>(std::min<std::int64_t>(
                kMostCost, std::llround(kFemto * link.remaining * link.scale / link.bandwidth.count())))
            << kCost) +
           (Key{1} << kLinks) +
           (static_cast<Key>(std::min<std::int64_t>(kMostLatency, std::llround(kPico * link.latency.count())))
            << kLatency)) {}

Paths::Paths(const Cluster& cluster)
    : cluster_(cluster),
      ways_(cluster.nodes.size()),
      place_number_(cluster.nodes.size(), -1),
      ports_(cluster.hosts.size()),
      is_port_(cluster.links.size()),
      left_(cluster.nodes.size(), kUnreached) {
  host_ = transformed(cluster.nodes, &Node::host);
  for (const auto [i, link] : enumerated(cluster.links)) {
    const Length length(link);
    ways_[link.a].push_back({static_cast<int>(i), link.b, host(link.b), length});
    ways_[link.b].push_back({static_cast<int>(i), link.a, host(link.a), length});
  }
  int number = 0;
  for (const int place : cluster.places()) place_number_[place] = number++;
  number = 0;
  for (std::size_t i = 0; i < cluster.nodes.size(); ++i) {
    if (cluster.nodes[i].host >= 0) continue;
    for (const Way& way : ways_[i])
      if (const int there = way.host; there >= 0) {
        ports_[there].push_back({way.to, way.link, number++, static_cast<int>(i), way.length});
        is_port_[way.link] = true;
      }
  }
  for (const Link& link : cluster.links)
    joins_hosts_ = joins_hosts_ || (host(link.a) >= 0 && host(link.b) >= 0 && host(link.a) != host(link.b));
  for (std::size_t i = 0; i < ways_.size(); ++i) {
    switches_.push_back(host_[i] < 0 ? switch_count_++ : -1);
    if (host_[i] < 0) std::ranges::stable_sort(ways_[i], {}, &Way::host);
  }
}

Path Paths::between(int from, int to, Search search_from) const {
  if (from == to) return {};
  const bool across = host(from) >= 0 && host(to) >= 0 && host(from) != host(to) && !joins_hosts_;
  through_hosts_ = false;
  bool found = across && search_from == Search::kDistances ? search_by_distances(from, to) : search(from, to);
  if (!found) {
    through_hosts_ = true;
    found = search(from, to);
  }
  return found ? walk(from, to) : Path{};
}

void Paths::each_way(int at, int from, int to, const auto& visit) const {
  const auto [first, last] = std::minmax({host(from), host(to)});
  if (host(at) >= 0 || through_hosts_) {
    for (const Way& way : ways_[at])
      if (through_hosts_ || way.host < 0 || way.host == first || way.host == last) visit(way);
    return;
  }
  int before = -2;
  for (const int inside : {-1, first, last})
    if (inside > std::exchange(before, inside))
      for (const Way& way : std::ranges::equal_range(ways_[at], inside, {}, &Way::host)) visit(way);
}

Length Paths::left_from(int node) const {
  if (tails_.empty() || host(node) >= 0) return left(node);
  const int number = switches_[node];
  Length least = kUnreached;
  for (const Tail& tail : tails_)
    if (const Length way = tail.from(number); way != kUnreached) least = std::min(least, way + tail.length);
  return least;
}

Length Paths::left_by(const Way& way, int to) const { return left_from(way.to) + step(way, to); }

Length Paths::step(const Way& way, int to) const {
  Length length = way.length;
  if (way.to != to && place_number_[way.to] >= 0) length = length + Length::through_place();
  const bool comes_in = is_port_[way.link] && way.host == host(to);
  if (comes_in && entry_ != nullptr && way.link != entry_->link) length = length + Length::other_port();
  return length;
}

void Paths::visit_nearest(int until, const auto& visit) const {
  while (!open_.empty() && (until < 0 || left(until) == kUnreached || open_.top().length < left(until))) {
    const Arrival here = open_.top();
    open_.pop();
    if (!(left(here.node) < here.length)) visit(here.node);
  }
}

bool Paths::search(int from, int to) const {
  forget();
  come_from(to, {});
  visit_nearest(from, [&](int here) {
    each_way(here, from, to, [&](const Way& way) {
      const bool comes_in = way.host < 0 && host(here) >= 0 && host(here) == host(to);
      if (comes_in && entry_ == nullptr) entry_ = &entry_of(to);
      come_from(way.to, left_by({way.link, here, host(here), way.length}, to));
    });
  });
  return left(from) != kUnreached;
}

void Paths::forget() const {
  for (const int node : visited_) left(node) = kUnreached;
  visited_.clear();
  tails_.clear();
  open_.clear();
  entry_ = nullptr;
}

void Paths::join_switches() const {
  between_switches_.resize(switch_count_);
  for (std::size_t node = 0; node < ways_.size(); ++node)
    if (switches_[node] >= 0)
      for (const Way& way : ways_[node])
        if (way.host < 0) between_switches_[switches_[node]].emplace_back(switches_[way.to], way.length);
  std::map<std::vector<std::pair<int, Length>>, int> seen;
  for (std::vector<std::pair<int, Length>>& joined : between_switches_) {
    std::ranges::sort(joined);
    twins_.push_back(seen.try_emplace(joined, static_cast<int>(twins_.size())).first->second);
  }
}

int Paths::twin(int at) const {
  if (between_switches_.empty()) join_switches();
  return twins_[switches_[at]];
}

const Paths::Distances& Paths::distances_to(int twin) const {
  const auto [found, is_new] = distances_.try_emplace(twin);
  Distances& distances = found->second;
  if (!is_new) return distances;
  std::vector<Length> known(between_switches_.size(), kUnreached);
  std::vector<Length>& lengths = distances.lengths;
  distances.which.resize(known.size());
  Queue open;
  known[twin] = {};
  open.push({{}, twin});
  while (!open.empty()) {
    const Arrival here = open.top();
    open.pop();
    if (known[here.node] < here.length) continue;
    if (lengths.empty() || lengths.back() < here.length) lengths.push_back(here.length);
    distances.which[here.node] = static_cast<std::uint32_t>(lengths.size() - 1);
    for (const auto& [to, step] : between_switches_[here.node]) {
      const Length length = here.length + step;
      if (!(length < known[to])) continue;
      known[to] = length;
      open.push({length, to});
    }
  }
  for (std::size_t i = 0; i < known.size(); ++i)
    if (known[i] == kUnreached) distances.which[i] = static_cast<std::uint32_t>(lengths.size());
  lengths.push_back(kUnreached);
  return distances;
}

/// From the destination through its host to its ports, by distances to the ports of the start's host, and
/// through that.
bool Paths::search_by_distances(int from, int to) const {
  forget();
  come_from(to, {});
  search_inside(host(to), to, -1);
  const std::vector<Port>& ends = ports_[host(to)];
  if (std::ranges::all_of(ends, [this](const Port& one) { return left(one.node) == kUnreached; }))
    return false;
  entry_ = &entry_of(to);
  for (const Port& port : ends) {
    if (left(port.node) == kUnreached) continue;
    const Length length = left_by({port.link, port.node, host(to), port.length}, to);
    const auto known = std::ranges::find_if(tails_, [&](const Tail& one) { return one.at == port.at; });
    if (known == tails_.end())
      tails_.push_back({port.at, length, switches_[port.at], twin(port.at), &distances_to(twin(port.at))});
    else
      known->length = std::min(known->length, length);
  }
  for (const Port& port : ports_[host(from)])
    if (left_from(port.at) != kUnreached)
      come_from(port.node, left_by({port.link, port.at, -1, port.length}, to));
  search_inside(host(from), to, from);
  return left(from) != kUnreached;
}

void Paths::come_from(int node, const Length& length) const {
  if (!(length < left(node))) return;
  if (left(node) == kUnreached) visited_.push_back(node);
  left(node) = length;
  open_.push({length, node});
}

void Paths::search_inside(int inside, int to, int until) const {
  visit_nearest(until, [&](int here) {
    for (const Way& way : ways_[here])
      if (way.host == inside) come_from(way.to, left_by({way.link, here, inside, way.length}, to));
  });
}

/// All that are equally near have been reached when the search leaves the host by the first of them.
const Paths::Port& Paths::entry_of(int to) const {
  const std::vector<Port>& ports = ports_[host(to)];
  Length least = kUnreached;
  for (const Port& port : ports) least = std::min(least, left(port.node));
  const auto is_nearest = [&](const Port& port) { return left(port.node) == least; };
  auto before = place_number(to) % std::ranges::count_if(ports, is_nearest);
  return *std::ranges::find_if(ports, [&](const Port& port) { return is_nearest(port) && before-- == 0; });
}

/// From the start to ever nearer nodes.
Path Paths::walk(int from, int to) const {
  const int place = place_number(to);
  int port = entry_ == nullptr ? 0 : entry_->number;
  walked_.clear();
  for (int at = from; at != to;) {
    equal_.clear();
    const Length here = left_from(at);
    each_way(at, from, to, [&](const Way& way) {
      if (left_from(way.to) != kUnreached && left_by(way, to) == here) equal_.push_back(&way);
    });
    const auto choices = static_cast<int>(equal_.size());
    const bool in_network = host(at) < 0 && host(equal_.front()->to) < 0;
    const Way& way = *equal_[(in_network ? port : place) % choices];
    if (in_network) port /= choices;
    walked_.push_back({way.link, cluster_.links[way.link].a == at});
    at = way.to;
  }
  return walked_;
}

int switches_crossed(const Cluster& cluster, const Path& path) {
  int switches = 0;
  for (const Hop& hop : path) {
    const Link& link = cluster.links[hop.link];
    const int at = hop.forward ? link.b : link.a;
    if (cluster.node(at).kind == NodeKind::kSwitch) ++switches;
  }
  return switches;
}

Seconds latency(const Cluster& cluster, const Path& path) {
  return sum_of(path, [&](const Hop& hop) { return cluster.links[hop.link].latency; });
}

BytesPerSecond bandwidth(const Cluster& cluster, const Path& path) {
  BytesPerSecond least = cluster.links[path.front().link].bandwidth;
  for (const Hop& hop : path) least = std::min(least, cluster.links[hop.link].bandwidth);
  return least;
}

}  // namespace stepcast
