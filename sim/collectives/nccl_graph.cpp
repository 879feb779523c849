#include "sim/collectives/nccl_graph.hpp"

#include <algorithm>
#include <cassert>
#include <functional>
#include <iterator>
#include <limits>
#include <set>
#include <string>
#include <unordered_map>

#include "core/error.hpp"
#include "topologies/devices.hpp"
#include "topologies/network.hpp"

namespace stepcast {
namespace {

constexpr double kGiga = 1e9;
constexpr double kCpuRouted = 6.0 / 5.0;        // INTEL_P2P_OVERHEAD
constexpr BytesPerSecond kTcpCopied{8e9};       // by one proxy thread
constexpr double kFallbackSpeed = 0.1 * kGiga;  // of one ring in natural order, where none fits
constexpr double kLeastSplit = 25.0 * kGiga;
constexpr double kLeastSplitHopper = 50.0 * kGiga;
constexpr int kFewChannels = 4;
constexpr int kAmpere = 80;
constexpr int kHopper = 90;
constexpr int kBlackwell = 100;
constexpr int kMostOrdered = 8;       // GPUs per host up to which all orders are tried
constexpr double kLowestPart = 0.49;  // of the best speed so far, below which NCCL stops
constexpr double kRounding = 1e-6;    // links hold whole numbers of channels but for rounding

/// The speeds that NCCL tries, in GB/s: `speedArrayIntra` and the like in src/graph/search.cc.
const std::vector<double>& speeds_gb_per_s(int compute_capability, bool several_hosts) {
  static const std::vector<double> kIntra{40, 30, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3};
  static const std::vector<double> kInter{48, 30, 28, 24, 20, 18,  15,  12,   10,  9,
                                          7,  6,  5,  4,  3,  2.4, 1.2, 0.24, 0.12};
  static const std::vector<double> kIntraHopper{60, 50, 40, 30, 24, 20, 15, 12, 11, 6, 3};
  static const std::vector<double> kInterHopper{48,   45, 42, 40, 30,  24,  22,   20,  17.5,
                                                15.0, 12, 6,  3,  2.4, 1.2, 0.24, 0.12};
  static const std::vector<double> kIntraBlackwell{90, 80, 70, 60, 50, 45, 40, 30, 24, 20, 19, 18};
  static const std::vector<double> kInterBlackwell{96, 86,   80, 48, 45.1, 42, 40,  30,  24,   22,
                                                   20, 17.5, 15, 12, 6,    3,  2.4, 1.2, 0.24, 0.12};
  if (compute_capability >= kBlackwell) return several_hosts ? kInterBlackwell : kIntraBlackwell;
  if (compute_capability >= kHopper) return several_hosts ? kInterHopper : kIntraHopper;
  return several_hosts ? kInter : kIntra;
}

std::vector<double> speeds(int compute_capability, bool several_hosts) {
  std::vector<double> result = speeds_gb_per_s(compute_capability, several_hosts);
  for (double& speed : result) speed *= kGiga;
  return result;
}

int arrival(const Cluster& cluster, const Hop& hop) {
  const Link& link = cluster.links[hop.link];
  return hop.forward ? link.b : link.a;
}

/// What NCCL reads of it: B/s of the adapter, whatever its links are scaled to.
double planned_with(const Link& link) { return nominal_rate(link).count() / link.scale; }

/// Channels of one search: MAXCHANNELS / 2.
constexpr int kMostNcclChannels = 32;

/// Where a hop's link and direction stand in lists by 2 * link + (backward ? 1 : 0).
std::size_t slot(const Hop& hop) { return 2 * static_cast<std::size_t>(hop.link) + (hop.forward ? 0 : 1); }

/// A way between two GPUs and what an edge of 1 B/s over it takes from its links.
struct NcclWay {
  std::vector<std::size_t>
      links{};  ///< where they stand in `NcclRingSearch::capacity`; empty: not asked for yet
  double overhead = 1.0;
};

/// GPUs of one host whose rings are looked for. Ways are asked for by index: from one GPU of the host to
/// another, or, where `leaves`, to a GPU of the next host.
struct NcclRingSearch {
  int gpus = 1;
  bool several_hosts = false;
  bool all_alike = false;  ///< any order of the GPUs is as good as any other
  std::function<const NcclWay&(int from, int to, bool leaves)> way;
  std::vector<double>
      capacity{};  ///< B/s of the links, in their direction, of the ways that have been asked for
};

struct NcclRings {
  double speed = 0.0;                    ///< B/s of one channel
  std::vector<std::vector<int>> orders;  ///< one per channel; empty: none fits even the lowest speed
};

/// How good a ring is; larger is better, in this order.
struct Left {
  double fullest = -1.0;  ///< what the ring leaves on its fullest link
  double sum = 0.0;       ///< over its edges
  friend bool operator<(const Left& a, const Left& b) {
    return a.fullest != b.fullest ? a.fullest < b.fullest : a.sum < b.sum;
  }
};

/// Rings of one speed in what earlier rings have left of the links.
class Packing {
 public:
  Packing(const NcclRingSearch& search, double speed)
      : search_(search), speed_(speed), natural_(search.all_alike || search.gpus > kMostOrdered) {}

  /// Adds the best ring. False when none fits.
  ///
  /// Rings that begin at different GPUs differ in the NIC by which they leave the host.
  bool add() {
    best_ = {};
    best_order_.clear();
    for (int first = 0; first < (search_.several_hosts ? search_.gpus : 1); ++first) {
      std::vector<int> order{first};
      extend(order, natural_ ? 0U : 1U << static_cast<unsigned>(first), {});
    }
    if (best_order_.empty()) return false;
    Left unused;
    for (std::size_t i = 0; i + 1 < best_order_.size(); ++i)
      take(best_order_[i], best_order_[i + 1], false, unused);
    if (closes()) take(best_order_.back(), best_order_.front(), search_.several_hosts, unused);
    orders_.push_back(best_order_);
    return true;
  }

  [[nodiscard]] const std::vector<std::vector<int>>& orders() const { return orders_; }

 private:
  /// A single GPU of a single host has no edge.
  [[nodiscard]] bool closes() const { return search_.gpus > 1 || search_.several_hosts; }

  /// Takes the edge's share of its links; gives back what was taken where it does not fit.
  bool take(int from, int to, bool leaves, Left& quality) {
    const NcclWay& way = search_.way(from, to, leaves);
    left_.insert(left_.end(), search_.capacity.begin() + static_cast<std::ptrdiff_t>(left_.size()),
                 search_.capacity.end());  // of links that nobody has asked for before
    const double amount = speed_ * way.overhead;
    double least = std::numeric_limits<double>::infinity();
    for (std::size_t i = 0; i < way.links.size(); ++i) {
      double& left = left_[way.links[i]];
      if (left < amount * (1.0 - kRounding)) {
        for (std::size_t back = 0; back < i; ++back) left_[way.links[back]] += amount;
        return false;
      }
      left -= amount;
      least = std::min(least, left);
    }
    quality.fullest = quality.fullest < 0.0 ? least : std::min(quality.fullest, least);
    quality.sum += least;
    return true;
  }
  void give_back(int from, int to, bool leaves) {
    const NcclWay& way = search_.way(from, to, leaves);
    for (const std::size_t link : way.links) left_[link] += speed_ * way.overhead;
  }

  /// Tries all orders of the GPUs that are not `used`, or only the natural one, and remembers the best.
  void extend(std::vector<int>& order, unsigned used, const Left& so_far) {
    const int from = order.back();
    if (static_cast<int>(order.size()) == search_.gpus) {
      Left quality = so_far;
      if (closes()) {
        if (!take(from, order.front(), search_.several_hosts, quality)) return;
        give_back(from, order.front(), search_.several_hosts);
      }
      if (!best_order_.empty() && !(best_ < quality)) return;
      best_ = quality;
      best_order_ = order;
      return;
    }
    for (int next = natural_ ? (from + 1) % search_.gpus : 0; next < search_.gpus; ++next) {
      const unsigned bit = natural_ ? 0U : 1U << static_cast<unsigned>(next);
      if ((used & bit) != 0) continue;
      Left quality = so_far;
      if (take(from, next, false, quality)) {
        if (best_order_.empty() || quality.fullest >= best_.fullest) {
          order.push_back(next);
          extend(order, used | bit, quality);
          order.pop_back();
        }
        give_back(from, next, false);
      }
      if (natural_) return;
    }
  }

  const NcclRingSearch& search_;
  const double speed_;
  const bool natural_;  ///< GPUs stand in their natural order, whichever is the first
  std::vector<double> left_;
  std::vector<std::vector<int>> orders_;
  Left best_;
  std::vector<int> best_order_;
};

/// \param speeds in B/s, descending
NcclRings search_rings(const NcclRingSearch& search, const std::vector<double>& speeds) {
  NcclRings best;
  double most = 0.0;
  for (const double speed : speeds) {
    if (speed <= kLowestPart * best.speed) break;
    Packing packing(search, speed);
    while (static_cast<int>(packing.orders().size()) < kMostNcclChannels && packing.add()) {
    }
    const double total = static_cast<double>(packing.orders().size()) * speed;
    if (total <= most * (1.0 + kRounding)) continue;
    most = total;
    best = {speed, packing.orders()};
  }
  return best;
}

/// Builds the graph of one group.
class GraphOfGroup {
 public:
  GraphOfGroup(NcclGraphs& graphs, const std::vector<int>& places)
      : graphs_(graphs), cluster_(graphs.cluster()), places_(places) {}

  NcclGraph build() {
    graph_.ranks = static_cast<int>(places_.size());
    group_by_host();
    graph_.compute_capability = capability();
    graph_.laws = &graphs_.laws(graph_.compute_capability);
    graph_.memory_bandwidth = memory_bandwidth();
    if (graph_.ranks == 1) {
      graph_.rings = {{{0}, 1.0}};
      return graph_;
    }
    look_for_rings();
    describe_edges();
    split_channels();
    graph_.bandwidth = scale_ * graph_.bandwidth;
    if (at_nvswitch()) add_nvls();
    return graph_;
  }

 private:
  [[nodiscard]] bool several_hosts() const { return hosts_.size() > 1; }
  const Path& path(int from, int to) { return graphs_.path(places_[from], places_[to]); }
  const NcclPair& pair(int from, int to) { return graphs_.pair(places_[from], places_[to]); }

  void group_by_host() {
    std::map<int, std::size_t> known;
    for (int rank = 0; rank < graph_.ranks; ++rank) {
      const auto [found, is_new] = known.try_emplace(cluster_.node(places_[rank]).host, hosts_.size());
      if (is_new) hosts_.emplace_back();
      hosts_[found->second].push_back(rank);
      graph_.node_of_rank.push_back(static_cast<int>(found->second));
    }
    graph_.nodes = static_cast<int>(hosts_.size());
  }

  [[nodiscard]] int capability() const {
    int least = device_model(cluster_.node(places_.front()).device).compute_capability;
    for (const int each : places_)
      least = std::min(least, device_model(cluster_.node(each).device).compute_capability);
    return least;
  }

  [[nodiscard]] BytesPerSecond memory_bandwidth() const {
    BytesPerSecond least = device_model(cluster_.node(places_.front()).device).memory_bandwidth;
    for (const int each : places_)
      least = std::min(least, device_model(cluster_.node(each).device).memory_bandwidth);
    return least;
  }

  /// Every way inside the first host has two equal links that meet at one node.
  [[nodiscard]] bool all_alike() {
    std::set<int> middles;
    std::set<double> bandwidths;
    for (const int from : hosts_[0])
      for (const int to : hosts_[0]) {
        if (from == to) continue;
        const Path& way = path(from, to);
        if (way.size() != 2) return hosts_[0].size() <= 2;
        middles.insert(arrival(cluster_, way.front()));
        for (const Hop& hop : way) bandwidths.insert(cluster_.links[hop.link].bandwidth.count());
      }
    return middles.size() <= 1 && bandwidths.size() <= 1;
  }

  /// In the first host, with the edges to the second.
  NcclRings search() {
    NcclRingSearch request;
    request.gpus = static_cast<int>(hosts_[0].size());
    request.several_hosts = several_hosts();
    request.all_alike = all_alike();
    const std::size_t gpus = hosts_[0].size();
    std::vector<NcclWay> known(2 * gpus * gpus);
    std::unordered_map<std::size_t, std::size_t> place;  // in `capacity`, by slot
    request.way = [this, gpus, &known, &place, &request](int from, int to, bool leaves) -> const NcclWay& {
      const auto here = static_cast<std::size_t>(from);
      const auto there = static_cast<std::size_t>(to);
      NcclWay& way = known[(2 * here + (leaves ? 1 : 0)) * gpus + there];
      const std::vector<int>& next = hosts_[leaves ? 1 : 0];
      const int to_rank = next[there % next.size()];
      if (!way.links.empty()) return way;
      way.overhead = pair(hosts_[0][here], to_rank).overhead;
      for (const Hop& hop : path(hosts_[0][here], to_rank)) {
        const auto [found, is_new] = place.try_emplace(slot(hop), request.capacity.size());
        if (is_new) request.capacity.push_back(planned_with(cluster_.links[hop.link]));
        way.links.push_back(found->second);
      }
      return way;
    };
    NcclRings found = search_rings(request, speeds(graph_.compute_capability, several_hosts()));
    if (found.orders.empty()) {
      none_fits_ = true;
      found = {kFallbackSpeed, {{}}};
      for (int gpu = 0; gpu < request.gpus; ++gpu) found.orders.front().push_back(gpu);
    }
    return found;
  }

  void look_for_rings() {
    const NcclRings found = search();
    graph_.channels = static_cast<int>(found.orders.size());
    graph_.bandwidth = BytesPerSecond(found.speed);
    const double share = 1.0 / graph_.channels;
    std::set<std::vector<int>> cyclic;
    std::map<std::vector<int>, std::size_t> known;
    for (const std::vector<int>& order : found.orders) {
      const auto [ring, is_new] = known.try_emplace(order, graph_.rings.size());
      if (is_new)
        graph_.rings.push_back({over_all_hosts(order), share});
      else
        graph_.rings[ring->second].share += share;
      std::vector<int> from_zero = order;
      std::rotate(from_zero.begin(), std::min_element(from_zero.begin(), from_zero.end()), from_zero.end());
      cyclic.insert(from_zero);
    }
    graph_.same_channels = cyclic.size() == 1;
  }

  /// Host after host in the order of the first; hosts with another number of GPUs in their natural one.
  [[nodiscard]] std::vector<int> over_all_hosts(const std::vector<int>& order) const {
    std::vector<int> ring;
    for (const std::vector<int>& ranks : hosts_) {
      if (ranks.size() == order.size())
        std::transform(order.begin(), order.end(), std::back_inserter(ring),
                       [&ranks](int gpu) { return ranks[gpu]; });
      else
        ring.insert(ring.end(), ranks.begin(), ranks.end());
    }
    return ring;
  }

  /// What the edges are made of. The fullest link sets the pace of all: NCCL plans with the nominal rates of
  /// adapters, of which the protocol takes its part, and with those of the first host. Where no ring fits, it
  /// plans with one of 0.1 GB/s; that one goes as fast as its links. Where links are scaled, all goes faster
  /// by what the fullest link then carries more.
  void describe_edges() {
    std::unordered_map<std::size_t, double> used;
    const double speed = graph_.bandwidth.count() * graph_.channels;
    for (const NcclRing& ring : graph_.rings) {
      for (std::size_t i = 0; i < ring.order.size(); ++i) {
        const int from = ring.order[i];
        const int to = ring.order[(i + 1) % ring.order.size()];
        const NcclPair& edge = pair(from, to);
        if (edge.hardware == NcclHardware::kNetwork) {
          graph_.network_latency = std::max(graph_.network_latency, edge.latency);
          graph_.tcp = graph_.tcp || edge.tcp;
          // Sockets take bytes from the host's memory, which to NCCL lies behind the processor.
          graph_.through_socket = graph_.through_socket || edge.through_socket || edge.tcp;
        } else {
          graph_.intra = std::max(graph_.intra, edge.hardware);
          graph_.sockets_passed = std::max(graph_.sockets_passed, edge.sockets);
        }
        for (const Hop& hop : path(from, to)) used[slot(hop)] += speed * ring.share * edge.overhead;
      }
    }
    double left = std::numeric_limits<double>::infinity(), scaled = left, tcp = left;  // of the fullest link
    for (const auto& [where, taken] : used) {
      const Link& link = cluster_.links[where / 2];
      scaled = std::min(scaled, link.bandwidth.count() / taken);
      const BytesPerSecond wire = link.bandwidth / link.scale;
      left = std::min(left, wire.count() / taken);
      const bool adapter = cluster_.node(link.a).host >= 0 || cluster_.node(link.b).host >= 0;
      if (graph_.tcp && link.kind == LinkKind::kEthernet && adapter)
        tcp = std::min(tcp, nccl_tcp_rate(wire).count() / taken);
    }
    const double pace = none_fits_ ? left : std::min(1.0, left);
    graph_.bandwidth = pace * graph_.bandwidth;
    graph_.tcp_part = std::min(1.0, tcp / pace);
    if (!used.empty()) scale_ = scaled / left;
  }

  /// `ncclTopoDupChannels`.
  void split_channels() {
    const double speed = graph_.bandwidth.count();
    if (speed < kLeastSplit) return;
    if (graph_.compute_capability > kAmpere && speed < kLeastSplitHopper && graph_.channels > kFewChannels)
      return;
    const int split = std::min(2 * graph_.channels, kMostNcclChannels);
    const int parts = (split + graph_.channels - 1) / graph_.channels;
    graph_.bandwidth = graph_.bandwidth / parts;
    graph_.channels = split;
  }

  /// All ways inside a host lead through its NVSwitch.
  [[nodiscard]] bool at_nvswitch() {
    const auto at_switch = [this](int from, int to) {
      return cluster_.node(arrival(cluster_, path(from, to).front())).kind == NodeKind::kNvSwitch;
    };
    for (const std::vector<int>& ranks : hosts_)
      for (std::size_t i = 0; i < ranks.size(); ++i)
        if (ranks.size() < 2 || !at_switch(ranks[i], ranks[(i + 1) % ranks.size()])) return false;
    return true;
  }

  /// NVLink SHARP: each GPU is the head of a channel, at the highest speed that all channels together leave
  /// room for on every GPU's NVLink. Between hosts the heads share what the rings found.
  void add_nvls() {
    if (graph_.compute_capability < kHopper) return;
    const auto heads = static_cast<int>(hosts_[0].size());
    double nvlink = std::numeric_limits<double>::infinity(), scale = nvlink;
    for (const std::vector<int>& ranks : hosts_) {
      if (static_cast<int>(ranks.size()) != heads) return;
      for (std::size_t i = 0; i < ranks.size(); ++i) {
        const int next = ranks[(i + 1) % ranks.size()];
        const double here = cluster_.links[path(ranks[i], next).front().link].scale;
        nvlink = std::min(nvlink, pair(ranks[i], next).bandwidth.count() / here);
        scale = std::min(scale, here);
      }
    }
    for (const double speed : speeds(graph_.compute_capability, several_hosts())) {
      if (heads * speed > nvlink) continue;
      graph_.nvls_channels = heads;
      graph_.nvls_bandwidth = BytesPerSecond(scale * speed);
      graph_.nvls_network = graph_.channels * graph_.bandwidth / heads;
      return;
    }
  }

  NcclGraphs& graphs_;
  const Cluster& cluster_;
  const std::vector<int>& places_;
  std::vector<std::vector<int>> hosts_;  ///< ranks of the group, by host
  bool none_fits_ = false;               ///< of the rings that were tried
  double scale_ = 1.0;                   ///< of what was planned, where links are scaled
  NcclGraph graph_;
};

}  // namespace

BytesPerSecond nccl_tcp_rate(BytesPerSecond wire) {
  return BytesPerSecond(1.0 / (1.0 / wire.count() + 1.0 / kTcpCopied.count()));
}

const NcclGraph& NcclGraphs::of(const std::vector<int>& places) {
  assert(!places.empty());
  const auto found = graphs_.find(places);
  if (found != graphs_.end()) return found->second;
  return graphs_.emplace(places, GraphOfGroup(*this, places).build()).first->second;
}

const NcclPair& NcclGraphs::pair(int from, int to) {
  const auto [found, is_new] = pairs_.try_emplace(static_cast<std::uint64_t>(from) * cluster().nodes.size() +
                                                  static_cast<std::uint64_t>(to));
  NcclPair& pair = found->second;
  if (!is_new) return pair;
  const Path& way = path(from, to);
  assert(!way.empty());
  pair.path = &way;
  for (const Hop& hop : way) {
    if (cluster().links[hop.link].kind != LinkKind::kNvLink) pair.hardware = NcclHardware::kPcie;
    if (cluster().node(arrival(cluster(), hop)).kind == NodeKind::kSocket) ++pair.sockets;
  }
  pair.through_socket = pair.sockets > 0;
  pair.laws = &laws(device_model(cluster().node(from).device).compute_capability);
  if (cluster().node(from).host != cluster().node(to).host) {
    pair.hardware = NcclHardware::kNetwork;
    pair.tcp = std::ranges::any_of(
        way, [this](const Hop& hop) { return cluster().links[hop.link].kind == LinkKind::kEthernet; });
  } else if (pair.sockets == 1) {
    pair.overhead = kCpuRouted;
  }
  pair.bandwidth = bandwidth(cluster(), way) / pair.overhead;
  pair.latency = latency(cluster(), way);
  return pair;
}

void check_nccl_places(const Cluster& cluster, const std::vector<int>& place_of_rank) {
  const auto devices = static_cast<std::size_t>(
      std::count_if(cluster.nodes.begin(), cluster.nodes.end(),
                    [](const Node& node) { return node.kind == NodeKind::kDevice; }));
  const std::string needs = "backend nccl needs a GPU for every rank: cluster '" + cluster.name + "' has ";
  if (devices == 0) throw UsageError(needs + "no devices");
  const std::set<int> different(place_of_rank.begin(), place_of_rank.end());
  if (different.size() != place_of_rank.size())
    throw UsageError(needs + std::to_string(devices) + " for " + std::to_string(place_of_rank.size()) +
                     " ranks");
  for (const int place : place_of_rank)
    if (cluster.node(place).kind != NodeKind::kDevice)
      throw UsageError(needs + "a rank on '" + cluster.node_name(place) + "'");
  if (place_of_rank.size() == 1) return;
  std::set<std::string> models;
  for (const int place : place_of_rank) models.insert(cluster.node(place).device);
  for (const std::string& model : models)
    if (device_model(model).compute_capability == 0)
      throw UsageError("backend nccl needs GPUs of NVIDIA: cluster '" + cluster.name + "' has " + model +
                       ", whose collectives (RCCL's) are not modelled; one rank is");
}

}  // namespace stepcast
