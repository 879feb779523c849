#include "sim/replay/platform.hpp"

#include <algorithm>
#include <array>
#include <csignal>
#include <simgrid/s4u.hpp>
#include <string>

#include "sim/replay/shortest_paths.hpp"

namespace stepcast {
namespace {

namespace s4u = simgrid::s4u;
using Direction = s4u::LinkInRoute::Direction;

constexpr double kUnusedSpeed = 1e9;  // hosts execute nothing in SimGrid, which wants a speed all the same

/// SimGrid reads its settings from a command line; it gets one of its own, never the user's.
///
/// CM02 without cross traffic and TCP window: see Platform. The precisions are absolute: with the default of
/// 10 us, flows that end within 10 us of each other would end together.
void make_engine() {
  std::array<std::string, 8> words{"stepcast",
                                   "--log=root.thresh:warning",
                                   "--cfg=network/model:CM02",
                                   "--cfg=network/crosstraffic:0",
                                   "--cfg=network/TCP-gamma:0",
                                   "--cfg=surf/precision:1e-12",
                                   "--cfg=maxmin/precision:1e-9",
                                   "--cfg=contexts/factory:raw"};
  static bool configured = false;  // SimGrid's settings outlive its engines, and may be made once
  std::vector<char*> argv;
  argv.reserve(words.size() + 1);
  for (std::string& word : words) argv.push_back(word.data());
  int argc = configured ? 1 : static_cast<int>(argv.size());
  configured = true;
  argv.push_back(nullptr);
  struct sigaction handler {};
  sigaction(SIGINT, nullptr, &handler);
  new s4u::Engine(&argc, argv.data());  // freed by shutdown()
  // SimGrid has installed its own handler, which would end the process with a report of its own.
  sigaction(SIGINT, &handler, nullptr);
}

s4u::SplitDuplexLink* make_link(s4u::NetZone* zone, const Link& link) {
  auto* made = zone->create_split_duplex_link(link.name, link.bandwidth.count() * kUnitsPerByte);
  made->set_latency(link.latency.count());
  made->seal();
  return made;
}

/// True when there is one switch and every host hangs on it by exactly one link.
bool is_star(const Cluster& cluster) {
  if (cluster.switches.size() != 1 || cluster.links.size() != cluster.hosts.size()) return false;
  std::vector<int> links(cluster.hosts.size());
  const auto hub = static_cast<int>(cluster.hosts.size());
  for (const Link& link : cluster.links) {
    if (std::max(link.a, link.b) != hub || std::min(link.a, link.b) == hub) return false;
    ++links[static_cast<std::size_t>(std::min(link.a, link.b))];
  }
  return std::all_of(links.begin(), links.end(), [](int count) { return count == 1; });
}

/// One route per host, to the switch and back, instead of one per pair of hosts.
std::vector<s4u::Host*> make_star(const Cluster& cluster, const std::vector<int>& hosts) {
  auto* zone = s4u::create_star_zone("cluster");
  const auto hub = static_cast<int>(cluster.hosts.size());
  std::vector<s4u::Host*> made(cluster.hosts.size());
  std::vector<const Link*> link_of(cluster.hosts.size());
  for (const Link& link : cluster.links) link_of[static_cast<std::size_t>(std::min(link.a, link.b))] = &link;
  for (const int index : hosts) {
    const auto i = static_cast<std::size_t>(index);
    made[i] = zone->create_host(cluster.hosts[i].name, kUnusedSpeed);
    const Direction away = link_of[i]->b == hub ? Direction::UP : Direction::DOWN;
    zone->add_route(made[i]->get_netpoint(), nullptr, nullptr, nullptr,
                    {{make_link(zone, *link_of[i]), away}}, true);
  }
  zone->seal();
  return made;
}

/// Any graph: the shortest path between every pair of hosts that hold ranks.
std::vector<s4u::Host*> make_graph(const Cluster& cluster, const std::vector<int>& hosts) {
  auto* zone = s4u::create_full_zone("cluster");
  std::vector<s4u::Host*> made(cluster.hosts.size());
  for (const int index : hosts) {
    const auto i = static_cast<std::size_t>(index);
    made[i] = zone->create_host(cluster.hosts[i].name, kUnusedSpeed);
  }
  std::vector<s4u::SplitDuplexLink*> links;
  if (hosts.size() > 1)
    for (const Link& link : cluster.links) links.push_back(make_link(zone, link));
  for (const int from : hosts) {
    if (hosts.size() < 2) break;
    const auto paths = shortest_paths(cluster, from);
    for (const int to : hosts) {
      if (to == from) continue;
      std::vector<s4u::LinkInRoute> route;
      for (const Hop& hop : paths[static_cast<std::size_t>(to)])
        route.emplace_back(links[static_cast<std::size_t>(hop.link)],
                           hop.forward ? Direction::UP : Direction::DOWN);
      zone->add_route(made[static_cast<std::size_t>(from)]->get_netpoint(),
                      made[static_cast<std::size_t>(to)]->get_netpoint(), nullptr, nullptr, route, false);
    }
  }
  zone->seal();
  return made;
}

bool same_network(const Cluster& a, const Cluster& b) {
  const auto same_link = [](const Link& x, const Link& y) {
    return x.a == y.a && x.b == y.b && x.bandwidth == y.bandwidth && x.latency == y.latency;
  };
  return a.hosts.size() == b.hosts.size() && a.switches.size() == b.switches.size() &&
         std::equal(a.links.begin(), a.links.end(), b.links.begin(), b.links.end(), same_link);
}

/// What SimGrid's engine, of which a process has one at a time, holds now. It is left to the process's end.
struct Built {
  Cluster cluster;
  std::vector<int> host_indices;
  std::vector<s4u::Host*> hosts;  ///< empty: no engine yet

  void build(const Cluster& wanted, const std::vector<int>& indices) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    if (!hosts.empty()) s4u::Engine::get_instance()->shutdown();  // the only way to another platform
#pragma GCC diagnostic pop
    make_engine();
    cluster = wanted;
    host_indices = indices;
    hosts = is_star(wanted) ? make_star(wanted, indices) : make_graph(wanted, indices);
  }
};

const Built& built_for(const Cluster& cluster, const std::vector<int>& hosts) {
  static Built built;
  const bool reusable =
      !built.hosts.empty() && same_network(built.cluster, cluster) &&
      std::includes(built.host_indices.begin(), built.host_indices.end(), hosts.begin(), hosts.end());
  if (!reusable) built.build(cluster, hosts);
  return built;
}

}  // namespace

Platform::Platform(const Cluster& cluster, const std::vector<int>& hosts)
    : hosts_(built_for(cluster, hosts).hosts) {}

void Platform::run() { s4u::Engine::get_instance()->run(); }

double Platform::latency_s(int from, int to) const {
  std::vector<s4u::Link*> links;
  double latency = 0.0;
  host(from)->route_to(host(to), links, &latency);
  return latency;
}

double Platform::bandwidth_bytes_per_s(int from, int to) const {
  std::vector<s4u::Link*> links;
  double latency = 0.0;
  host(from)->route_to(host(to), links, &latency);
  double bandwidth = links.front()->get_bandwidth();
  for (const auto* link : links) bandwidth = std::min(bandwidth, link->get_bandwidth());
  return bandwidth / kUnitsPerByte;
}

}  // namespace stepcast
