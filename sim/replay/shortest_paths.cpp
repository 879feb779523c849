#include "sim/replay/shortest_paths.hpp"

#include <algorithm>
#include <queue>
#include <tuple>

namespace stepcast {
namespace {

/// Length of a path; compared in this order.
struct Length {
  int through_hosts = 0;
  int links = 0;
  double latency_s = 0.0;
  friend bool operator<(const Length& a, const Length& b) {
    return std::tie(a.through_hosts, a.links, a.latency_s) < std::tie(b.through_hosts, b.links, b.latency_s);
  }
};

struct Arrival {
  Length length;
  int node = 0;
  friend bool operator>(const Arrival& a, const Arrival& b) {
    return b.length < a.length || (!(a.length < b.length) && b.node < a.node);
  }
};

constexpr int kUnreached = 1 << 30;

}  // namespace

std::vector<std::vector<Hop>> shortest_paths(const Cluster& cluster, int host) {
  const auto nodes = static_cast<std::size_t>(cluster.node_count());
  const auto hosts = static_cast<int>(cluster.hosts.size());
  std::vector<std::vector<int>> links_of(nodes);
  for (std::size_t i = 0; i < cluster.links.size(); ++i) {
    links_of[static_cast<std::size_t>(cluster.links[i].a)].push_back(static_cast<int>(i));
    links_of[static_cast<std::size_t>(cluster.links[i].b)].push_back(static_cast<int>(i));
  }
  std::vector<Length> best(nodes, Length{kUnreached, 0, 0.0});
  std::vector<int> last_link(nodes, -1);
  std::priority_queue<Arrival, std::vector<Arrival>, std::greater<>> open;
  best[static_cast<std::size_t>(host)] = {};
  open.push({{}, host});
  while (!open.empty()) {
    const Arrival here = open.top();
    open.pop();
    if (best[static_cast<std::size_t>(here.node)] < here.length) continue;
    for (const int index : links_of[static_cast<std::size_t>(here.node)]) {
      const Link& link = cluster.links[static_cast<std::size_t>(index)];
      const int next = link.a == here.node ? link.b : link.a;
      const bool forwards = here.node < hosts && here.node != host;
      const Length length{here.length.through_hosts + (forwards ? 1 : 0), here.length.links + 1,
                          here.length.latency_s + link.latency.count()};
      if (!(length < best[static_cast<std::size_t>(next)])) continue;
      best[static_cast<std::size_t>(next)] = length;
      last_link[static_cast<std::size_t>(next)] = index;
      open.push({length, next});
    }
  }
  std::vector<std::vector<Hop>> paths(nodes);
  for (int node = 0; node < static_cast<int>(nodes); ++node) {
    for (int at = node; last_link[static_cast<std::size_t>(at)] >= 0;) {
      const int index = last_link[static_cast<std::size_t>(at)];
      const Link& link = cluster.links[static_cast<std::size_t>(index)];
      const bool forward = link.b == at;
      paths[static_cast<std::size_t>(node)].push_back({index, forward});
      at = forward ? link.a : link.b;
    }
    std::reverse(paths[static_cast<std::size_t>(node)].begin(), paths[static_cast<std::size_t>(node)].end());
  }
  return paths;
}

}  // namespace stepcast
