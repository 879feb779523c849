#include "topologies/paths.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <queue>
#include <tuple>

namespace stepcast {
namespace {

/// Length of a path; compared in this order. Whole numbers, so that equal paths are equal.
struct Length {
  int through_places = 0;
  std::int64_t cost = 0;  ///< sum of 1 / bandwidth in fs/B
  int links = 0;
  std::int64_t latency_ps = 0;
  [[nodiscard]] auto key() const { return std::tie(through_places, cost, links, latency_ps); }
  friend bool operator<(const Length& a, const Length& b) { return a.key() < b.key(); }
  friend bool operator==(const Length& a, const Length& b) { return a.key() == b.key(); }
};

struct Arrival {
  Length length;
  int node = 0;
  friend bool operator>(const Arrival& a, const Arrival& b) {
    return b.length < a.length || (a.length == b.length && b.node < a.node);
  }
};

constexpr double kFemto = 1e15;
constexpr double kPico = 1e12;
const Length kUnreached{std::numeric_limits<int>::max(), 0, 0, 0};

int other_end(const Link& link, int node) { return link.a == node ? link.b : link.a; }

Length longer(const Length& length, const Link& link, bool through_place) {
  return {length.through_places + (through_place ? 1 : 0),
          length.cost + std::llround(kFemto / link.bandwidth.count()), length.links + 1,
          length.latency_ps + std::llround(kPico * link.latency.count())};
}

}  // namespace

Paths::Paths(const Cluster& cluster)
    : cluster_(cluster), links_of_(cluster.nodes.size()), place_number_(cluster.nodes.size(), -1) {
  for (std::size_t i = 0; i < cluster.links.size(); ++i) {
    links_of_[static_cast<std::size_t>(cluster.links[i].a)].push_back(static_cast<int>(i));
    links_of_[static_cast<std::size_t>(cluster.links[i].b)].push_back(static_cast<int>(i));
  }
  int number = 0;
  for (const int place : cluster.places()) place_number_[static_cast<std::size_t>(place)] = number++;
}

/// Dijkstra's algorithm from the destination until the start is reached; then from the start to ever nearer
/// nodes.
Path Paths::between(int from, int to) const {
  std::vector<Length> left(cluster_.nodes.size(), kUnreached);
  const auto length_of = [&left](int node) -> Length& { return left[static_cast<std::size_t>(node)]; };
  std::priority_queue<Arrival, std::vector<Arrival>, std::greater<>> open;
  length_of(to) = {};
  open.push({{}, to});
  const auto forwards = [&](int node) {
    return node != to && place_number_[static_cast<std::size_t>(node)] >= 0;
  };
  while (!open.empty() && open.top().node != from) {
    const Arrival here = open.top();
    open.pop();
    if (length_of(here.node) < here.length) continue;
    for (const int index : links_of_[static_cast<std::size_t>(here.node)]) {
      const Link& link = cluster_.links[static_cast<std::size_t>(index)];
      const int next = other_end(link, here.node);
      const Length length = longer(here.length, link, forwards(here.node));
      if (!(length < length_of(next))) continue;
      length_of(next) = length;
      open.push({length, next});
    }
  }
  Path path;
  if (length_of(from) == kUnreached) return path;
  int digits = std::max(0, place_number_[static_cast<std::size_t>(to)]);
  std::vector<int> equal;
  for (int at = from; at != to;) {
    equal.clear();
    for (const int index : links_of_[static_cast<std::size_t>(at)]) {
      const Link& link = cluster_.links[static_cast<std::size_t>(index)];
      const int next = other_end(link, at);
      if (!(length_of(next) == kUnreached) && longer(length_of(next), link, forwards(next)) == length_of(at))
        equal.push_back(index);
    }
    const auto choices = static_cast<int>(equal.size());
    const int chosen = equal[static_cast<std::size_t>(digits % choices)];
    digits /= choices;
    const Link& link = cluster_.links[static_cast<std::size_t>(chosen)];
    path.push_back({chosen, link.a == at});
    at = other_end(link, at);
  }
  return path;
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
