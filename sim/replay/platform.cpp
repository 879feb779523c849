#include "sim/replay/platform.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <csignal>
#include <functional>
#include <simgrid/s4u.hpp>
#include <string>

#include "topologies/network.hpp"

namespace stepcast {
namespace {

namespace s4u = simgrid::s4u;
using Direction = s4u::LinkInRoute::Direction;

constexpr double kUnusedSpeed = 1e9;  // hosts execute nothing in SimGrid, which requires a speed

/// SimGrid reads its settings from a command line; it gets one of its own, never the user's.
///
/// CM02 without cross traffic and TCP window: see Platform. How finely dates are parted: `part_dates_until`.
/// The precision of max-min sharing is SimGrid's own: it is held against sums of 1 / latency over all flows
/// of a link, and where some thousands of flows share a link, as in an all-to-all over 32 hosts, a finer one
/// lies below their rounding, and SimGrid aborts.
void make_engine(Platform::Updates updates) {
  std::array<std::string, 9> words{
      "stepcast",
      "--log=root.thresh:warning",
      "--log=res_network.thresh:error",  // warns of latencies below its default precision
      "--cfg=network/model:CM02",
      "--cfg=network/crosstraffic:0",
      "--cfg=network/TCP-gamma:0",
      "--cfg=maxmin/precision:1e-5",
      "--cfg=contexts/factory:raw",
      updates == Platform::Updates::kLazy ? "--cfg=network/optim:Lazy" : "--cfg=network/optim:Full"};
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

/// Compares what paths depend on; names do not matter.
bool same_node(const Node& a, const Node& b) {
  return a.host == b.host && a.kind == b.kind && a.device == b.device;
}

bool same_network(const Cluster& a, const Cluster& b,
                  const std::function<bool(const Link&, const Link&)>& same) {
  return std::equal(a.nodes.begin(), a.nodes.end(), b.nodes.begin(), b.nodes.end(), same_node) &&
         std::equal(a.links.begin(), a.links.end(), b.links.begin(), b.links.end(), same);
}

bool joins_same(const Link& a, const Link& b) { return a.a == b.a && a.b == b.b; }

bool same_link(const Link& a, const Link& b) {
  return joins_same(a, b) && a.bandwidth == b.bandwidth && a.latency == b.latency &&
         a.remaining == b.remaining;
}

}  // namespace

Platform& Platform::of(const Cluster& cluster, const std::vector<int>& nodes) {
  std::unique_ptr<Platform>& built = present();
  if (built != nullptr && built->adapt(cluster, nodes)) return *built;
  start_engine(Updates::kLazy);
  built.reset(new Platform(cluster, nodes));
  return *built;
}

std::unique_ptr<Platform>& Platform::present() {
  static std::unique_ptr<Platform> built;
  return built;
}

void Platform::start_engine(Updates updates) {
  present().reset();
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
  // The only way to another platform.
  if (s4u::Engine::is_initialized()) s4u::Engine::get_instance()->shutdown();
#pragma GCC diagnostic pop
  make_engine(updates);
}

Platform::Platform(Cluster cluster, std::vector<int> nodes)
    : cluster_(std::move(cluster)),
      nodes_(std::move(nodes)),
      paths_(cluster_),
      hosts_(cluster_.nodes.size()) {
  if (is_star(cluster_))
    make_star();
  else
    make_graph();
}

bool Platform::adapt(const Cluster& cluster, const std::vector<int>& nodes) {
  if (!std::ranges::includes(nodes_, nodes)) return false;
  if (same_network(cluster_, cluster, same_link)) return true;
  if (spokes_.empty() || !is_star(cluster) || !same_network(cluster_, cluster, joins_same)) return false;
  least_bandwidth_ = std::numeric_limits<double>::infinity();
  longest_latency_ = 0.0;
  for (const auto& [index, spoke] : spokes_) {
    const Link& link = cluster.links[index];
    cluster_.links[index] = link;
    bound_by(link);
    for (s4u::Link* direction : {spoke->get_link_up(), spoke->get_link_down()}) {
      direction->set_bandwidth(link.bandwidth.count() * kUnitsPerByte);
      direction->set_latency(link.latency.count());
    }
  }
  return true;
}

/// One route per host, to the switch and back, instead of one per pair of hosts.
void Platform::make_star() {
  zone_ = s4u::create_star_zone("cluster");
  const auto hub = static_cast<int>(cluster_.nodes.size()) - 1;
  std::vector<std::size_t> link_of(cluster_.nodes.size());
  for (std::size_t i = 0; i < cluster_.links.size(); ++i)
    link_of[std::min(cluster_.links[i].a, cluster_.links[i].b)] = i;
  for (const int node : nodes_) {
    hosts_[node] = zone_->create_host(cluster_.node_name(node), kUnusedSpeed);
    const std::size_t index = link_of[node];
    const Link& link = cluster_.links[index];
    bound_by(link);
    spokes_.emplace_back(index, make_link(zone_, link));
    zone_->add_route(host(node)->get_netpoint(), nullptr, nullptr, nullptr,
                     {{spokes_.back().second, link.b == hub ? Direction::UP : Direction::DOWN}}, true);
  }
  zone_->seal();
}

/// Any graph; its routes are added when they are needed.
void Platform::make_graph() {
  zone_ = s4u::create_full_zone("cluster");
  for (const int node : nodes_) hosts_[node] = zone_->create_host(cluster_.node_name(node), kUnusedSpeed);
  if (nodes_.size() > 1)
    for (const Link& link : cluster_.links) links_.push_back(make_link(zone_, link));
  zone_->seal();
}

void Platform::bound_by(const Link& spoke) {
  least_bandwidth_ = std::min(least_bandwidth_, spoke.bandwidth.count());
  longest_latency_ = std::max(longest_latency_, 2.0 * spoke.latency.count());  // a way has two
}

/// 1,024 ranks have a million pairs, of which a ring uses 1,024.
void Platform::need_route(int from, int to) {
  if (links_.empty() || !known_.emplace(from, to).second) return;
  std::vector<s4u::LinkInRoute> route;
  double latency = 0.0;
  for (const Hop& hop : paths_.between(from, to)) {
    const Link& link = cluster_.links[hop.link];
    least_bandwidth_ = std::min(least_bandwidth_, link.bandwidth.count());
    latency += link.latency.count();
    route.emplace_back(links_[hop.link], hop.forward ? Direction::UP : Direction::DOWN);
  }
  longest_latency_ = std::max(longest_latency_, latency);
  zone_->add_route(host(from)->get_netpoint(), host(to)->get_netpoint(), nullptr, nullptr, route, false);
}

void Platform::part_dates_until(double date) {
  static double precise_until = 0.0;
  if (date > 0.0 && date <= precise_until) return;
  precise_until = 2.0 * date;
  if (date == 0.0) return;
  s4u::Engine::set_config(fmt::format("surf/precision:{:g}", std::ldexp(precise_until, -46)));
}

}  // namespace stepcast
