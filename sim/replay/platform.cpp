#include "sim/replay/platform.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <limits>
#include <memory>
#include <set>
#include <simgrid/s4u.hpp>
#include <string>
#include <unordered_map>
#include <utility>

#include "topologies/network.hpp"
#include "topologies/paths.hpp"

namespace stepcast {
namespace {

namespace s4u = simgrid::s4u;
using Direction = s4u::LinkInRoute::Direction;

constexpr double kUnusedSpeed = 1e9;  // hosts execute nothing in SimGrid, which wants a speed all the same

/// SimGrid reads its settings from a command line; it gets one of its own, never the user's.
///
/// CM02 without cross traffic and TCP window: see Platform. How finely dates are parted: `part_dates_until`. The
/// precision of max-min sharing is SimGrid's own: it is held against sums of 1 / latency over all flows of a link, and
/// where some thousands of flows share a link, as in an all-to-all over 32 hosts, a finer one lies below their
/// rounding, and SimGrid aborts.
void make_engine() {
  std::array<std::string, 7> words{"stepcast",
                                   "--log=root.thresh:warning",
                                   "--cfg=network/model:CM02",
                                   "--cfg=network/crosstraffic:0",
                                   "--cfg=network/TCP-gamma:0",
                                   "--cfg=maxmin/precision:1e-5",
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

/// What paths depend on; names do not matter.
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

/// What SimGrid's engine, of which a process has one at a time, holds now. It is left to the process's end.
class Platform::Built {
 public:
  Built(Cluster cluster, std::vector<int> nodes)
      : cluster_(std::move(cluster)),
        nodes_(std::move(nodes)),
        paths_(cluster_),
        hosts_(cluster_.nodes.size()) {
    make_engine();
    if (is_star(cluster_))
      make_star();
    else
      make_graph();
  }

  [[nodiscard]] bool serves(const Cluster& cluster, const std::vector<int>& nodes) const {
    return same_network(cluster_, cluster, same_link) && covers(nodes);
  }

  /// A star whose links have only changed their speed goes on with the new one: a fit tries many, and its
  /// routes stay what they are. True when that was done.
  bool adapt(const Cluster& cluster, const std::vector<int>& nodes) {
    if (spokes_.empty() || !is_star(cluster) || !same_network(cluster_, cluster, joins_same) ||
        !covers(nodes))
      return false;
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

  [[nodiscard]] s4u::Host* host(int node) const { return hosts_[static_cast<std::size_t>(node)]; }

  [[nodiscard]] std::size_t link_index(const s4u::Link* link) const { return link_index_.at(link); }

  [[nodiscard]] double least_bandwidth() const { return least_bandwidth_; }
  [[nodiscard]] double longest_latency() const { return longest_latency_; }
  [[nodiscard]] bool same_host(int a, int b) const { return cluster_.node(a).host == cluster_.node(b).host; }
  /// In a star there is nothing to search; elsewhere each pair is searched once.
  [[nodiscard]] int switches_between(int from, int to) {
    if (!spokes_.empty()) return 1;
    const auto key =
        static_cast<std::uint64_t>(from) * cluster_.nodes.size() + static_cast<std::uint64_t>(to);
    const auto [known, is_new] = switches_.try_emplace(key, 0);
    if (is_new) known->second = switches_crossed(cluster_, paths_.between(from, to));
    return known->second;
  }

  /// Tells SimGrid the way between two nodes, the first time that somebody asks for it: 1,024 ranks have a
  /// million pairs, of which a ring uses 1,024.
  void need_route(int from, int to) {
    if (links_.empty() || !known_.emplace(from, to).second) return;
    std::vector<s4u::LinkInRoute> route;
    double latency = 0.0;
    for (const Hop& hop : paths_.between(from, to)) {
      const Link& link = cluster_.links[static_cast<std::size_t>(hop.link)];
      least_bandwidth_ = std::min(least_bandwidth_, link.bandwidth.count());
      latency += link.latency.count();
      route.emplace_back(links_[static_cast<std::size_t>(hop.link)],
                         hop.forward ? Direction::UP : Direction::DOWN);
    }
    longest_latency_ = std::max(longest_latency_, latency);
    zone_->add_route(host(from)->get_netpoint(), host(to)->get_netpoint(), nullptr, nullptr, route, false);
  }

 private:
  [[nodiscard]] bool covers(const std::vector<int>& nodes) const {
    return std::includes(nodes_.begin(), nodes_.end(), nodes.begin(), nodes.end());
  }

  /// One route per host, to the switch and back, instead of one per pair of hosts.
  void make_star() {
    zone_ = s4u::create_star_zone("cluster");
    const auto hub = static_cast<int>(cluster_.nodes.size()) - 1;
    std::vector<std::size_t> link_of(cluster_.nodes.size());
    for (std::size_t i = 0; i < cluster_.links.size(); ++i)
      link_of[static_cast<std::size_t>(std::min(cluster_.links[i].a, cluster_.links[i].b))] = i;
    for (const int node : nodes_) {
      make_host(node);
      const std::size_t index = link_of[static_cast<std::size_t>(node)];
      const Link& link = cluster_.links[index];
      bound_by(link);
      spokes_.emplace_back(index, make_link(zone_, link));
      remember(spokes_.back().second, index);
      zone_->add_route(host(node)->get_netpoint(), nullptr, nullptr, nullptr,
                       {{spokes_.back().second, link.b == hub ? Direction::UP : Direction::DOWN}}, true);
    }
    zone_->seal();
  }

  /// Any graph; its routes are told when they are needed.
  void make_graph() {
    zone_ = s4u::create_full_zone("cluster");
    for (const int node : nodes_) make_host(node);
    if (nodes_.size() > 1)
      for (const Link& link : cluster_.links) {
        links_.push_back(make_link(zone_, link));
        remember(links_.back(), links_.size() - 1);
      }
    zone_->seal();
  }

  void remember(const s4u::SplitDuplexLink* link, std::size_t index) {
    for (const s4u::Link* direction : {link->get_link_up(), link->get_link_down()})
      link_index_[direction] = index;
  }

  /// A spoke: a way has two.
  void bound_by(const Link& link) {
    least_bandwidth_ = std::min(least_bandwidth_, link.bandwidth.count());
    longest_latency_ = std::max(longest_latency_, 2.0 * link.latency.count());
  }

  void make_host(int node) {
    hosts_[static_cast<std::size_t>(node)] = zone_->create_host(cluster_.node_name(node), kUnusedSpeed);
  }

  Cluster cluster_;
  const std::vector<int> nodes_;
  const Paths paths_;
  double least_bandwidth_ = std::numeric_limits<double>::infinity();
  double longest_latency_ = 0.0;
  s4u::NetZone* zone_ = nullptr;
  std::vector<s4u::Host*> hosts_;             ///< by node; null where nothing sits
  std::vector<s4u::SplitDuplexLink*> links_;  ///< none where the zone knows all its routes
  std::unordered_map<const s4u::Link*, std::size_t> link_index_;  ///< of both directions
  std::set<std::pair<int, int>> known_;
  std::unordered_map<std::uint64_t, int> switches_;  ///< by pair of nodes, of those asked for
  std::vector<std::pair<std::size_t, s4u::SplitDuplexLink*>> spokes_;  ///< of a star, with their number in it
};

Platform::Platform(const Cluster& cluster, const std::vector<int>& nodes)
    : built_(built_for(cluster, nodes)) {}

Platform::Built& Platform::built_for(const Cluster& cluster, const std::vector<int>& nodes) {
  static std::unique_ptr<Built> built;
  if (built != nullptr && (built->serves(cluster, nodes) || built->adapt(cluster, nodes))) return *built;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
  if (built != nullptr) s4u::Engine::get_instance()->shutdown();  // the only way to another platform
#pragma GCC diagnostic pop
  built = std::make_unique<Built>(cluster, nodes);
  return *built;
}

void Platform::run() { s4u::Engine::get_instance()->run(); }

s4u::Host* Platform::host(int node) const { return built_.host(node); }

void Platform::need_route(int from, int to) const { built_.need_route(from, to); }

bool Platform::same_host(int a, int b) const { return built_.same_host(a, b); }

int Platform::switches_between(int from, int to) const { return built_.switches_between(from, to); }

std::size_t Platform::link_index(const s4u::Link* link) const { return built_.link_index(link); }

std::vector<s4u::Link*> Platform::way(int from, int to) const {
  need_route(from, to);
  std::vector<s4u::Link*> links;
  double latency = 0.0;
  host(from)->route_to(host(to), links, &latency);
  return links;
}

double Platform::latency_s(int from, int to) const {
  need_route(from, to);
  std::vector<s4u::Link*> links;
  double latency = 0.0;
  host(from)->route_to(host(to), links, &latency);
  return latency;
}

void Platform::part_dates_until(double date) {
  static double precise_until = 0.0;
  if (date > 0.0 && date <= precise_until) return;
  precise_until = 2.0 * date;
  if (date == 0.0) return;
  std::array<char, 64> setting{};
  std::snprintf(setting.data(), setting.size(), "surf/precision:%g", std::ldexp(precise_until, -46));
  s4u::Engine::set_config(setting.data());
}

double Platform::least_bandwidth_bytes_per_s() const { return built_.least_bandwidth(); }
double Platform::longest_latency_s() const { return built_.longest_latency(); }

double Platform::bandwidth_bytes_per_s(int from, int to) const {
  const std::vector<s4u::Link*> links = way(from, to);
  double bandwidth = links.front()->get_bandwidth();
  for (const auto* link : links) bandwidth = std::min(bandwidth, link->get_bandwidth());
  return bandwidth / kUnitsPerByte;
}

}  // namespace stepcast
