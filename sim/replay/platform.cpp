#include "sim/replay/platform.hpp"

#include <algorithm>
#include <array>
#include <csignal>
#include <simgrid/s4u.hpp>
#include <string>

#include "sim/core/error.hpp"
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
  const auto handler = std::signal(SIGINT, SIG_DFL);
  new s4u::Engine(&argc, argv.data());  // freed by shutdown()
  std::signal(SIGINT, handler);  // SimGrid installs its own, which would end the process with its own report
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

}  // namespace

Platform::Platform(const Cluster& cluster, const std::vector<int>& hosts) : hosts_(cluster.hosts.size()) {
  make_engine();
  if (is_star(cluster))
    add_star(cluster, hosts);
  else
    add_graph(cluster, hosts);
}

Platform::~Platform() {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
  s4u::Engine::get_instance()->shutdown();  // the only way to make another platform in this process
#pragma GCC diagnostic pop
}

void Platform::run() { s4u::Engine::get_instance()->run(); }

/// One route per host, to the switch and back, instead of one per pair of hosts.
void Platform::add_star(const Cluster& cluster, const std::vector<int>& hosts) {
  auto* zone = s4u::create_star_zone("cluster");
  const auto hub = static_cast<int>(cluster.hosts.size());
  std::vector<const Link*> link_of(cluster.hosts.size());
  for (const Link& link : cluster.links) link_of[static_cast<std::size_t>(std::min(link.a, link.b))] = &link;
  for (const int index : hosts) {
    const auto i = static_cast<std::size_t>(index);
    hosts_[i] = zone->create_host(cluster.hosts[i].name, kUnusedSpeed);
    const Direction away = link_of[i]->b == hub ? Direction::UP : Direction::DOWN;
    zone->add_route(hosts_[i]->get_netpoint(), nullptr, nullptr, nullptr,
                    {{make_link(zone, *link_of[i]), away}}, true);
  }
  zone->seal();
}

/// Any graph: the shortest path between every pair of hosts that hold ranks.
void Platform::add_graph(const Cluster& cluster, const std::vector<int>& hosts) {
  auto* zone = s4u::create_full_zone("cluster");
  for (const int index : hosts)
    hosts_[static_cast<std::size_t>(index)] =
        zone->create_host(cluster.hosts[static_cast<std::size_t>(index)].name, kUnusedSpeed);
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
      zone->add_route(host(from)->get_netpoint(), host(to)->get_netpoint(), nullptr, nullptr, route, false);
    }
  }
  zone->seal();
}

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
