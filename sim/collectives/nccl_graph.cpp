#include "sim/collectives/nccl_graph.hpp"

#include <algorithm>
#include <cassert>
#include <iterator>
#include <limits>
#include <set>
#include <string>
#include <unordered_map>

#include "core/error.hpp"
#include "core/ranges.hpp"
#include "sim/collectives/nccl_rings.hpp"
#include "topologies/devices.hpp"
#include "topologies/nccl_tables.hpp"
#include "topologies/network.hpp"

namespace stepcast {
namespace {

constexpr double kCpuRouted = 6.0 / 5.0;        // INTEL_P2P_OVERHEAD
constexpr BytesPerSecond kTcpCopied{8e9};       // by one proxy thread
constexpr double kFallbackSpeed = 0.1 * kGiga;  // of one ring in natural order, where none fits
constexpr double kLeastSplit = 25.0 * kGiga;
constexpr double kLeastSplitHopper = 50.0 * kGiga;
constexpr int kFewChannels = 4;
constexpr int kMostNvlsHeads = 32;
constexpr int kAmpere = 80;

/// Speeds that NCCL tries, in B/s.
std::vector<double> speeds(int compute_capability, bool several_hosts) {
  const NcclTables& tables = nccl_tables(compute_capability);
  std::vector<double> result = several_hosts ? tables.speeds_between_hosts : tables.speeds_in_host;
  for (double& speed : result) speed *= kGiga;
  return result;
}

int arrival(const Cluster& cluster, const Hop& hop) {
  const Link& link = cluster.links[hop.link];
  return hop.forward ? link.b : link.a;
}

/// Rate of the adapter that NCCL reads, in B/s: of a link that is neither degraded nor scaled.
double planned_with(const Link& link) { return nominal_rate(link).count() / (link.remaining * link.scale); }

/// Builds the graph of one group.
struct GraphOfGroup {
  NcclGraphs& graphs;
  const std::vector<int>& places;

  NcclGraph build() {
    graph.ranks = static_cast<int>(places.size());
    group_by_host();
    describe_gpu();
    if (graph.ranks == 1) {
      graph.rings = {{{0}, 1.0}};
      return graph;
    }
    look_for_rings();
    describe_edges();
    split_channels();
    graph.bandwidth = graph.scale * graph.bandwidth;
    if (at_nvswitch()) add_nvls();
    return graph;
  }

  [[nodiscard]] bool several_hosts() const { return hosts.size() > 1; }
  const Path& path(int from, int to) { return graphs.path(places[from], places[to]); }
  const NcclPair& pair(int from, int to) { return graphs.pair(places[from], places[to]); }

  void group_by_host() {
    std::map<int, std::size_t> known;
    for (int rank = 0; rank < graph.ranks; ++rank) {
      const auto [found, is_new] = known.try_emplace(cluster.node(places[rank]).host, hosts.size());
      if (is_new) hosts.emplace_back();
      hosts[found->second].push_back(rank);
      graph.node_of_rank.push_back(static_cast<int>(found->second));
    }
    graph.nodes = static_cast<int>(hosts.size());
  }

  void describe_gpu() {
    std::set<std::string> devices;
    for (const int each : places) devices.insert(cluster.node(each).device);
    const auto least = [&](const auto& of) {
      auto result = std::invoke(of, device_model(*devices.begin()));
      for (const std::string& each : devices) result = std::min(result, std::invoke(of, device_model(each)));
      return result;
    };
    graph.gpu = {least(&DeviceModel::collectives_as), least(&DeviceModel::memory_bandwidth), nullptr};
    graph.gpu.parameters = &graphs.parameters(graph.gpu.compute_capability);
  }

  /// Every way inside the first host has two equal links that meet at one node.
  [[nodiscard]] bool all_alike() {
    std::set<int> middles;
    std::set<double> bandwidths;
    for (const int from : hosts[0])
      for (const int to : hosts[0]) {
        if (from == to) continue;
        const Path& way = path(from, to);
        if (way.size() != 2) return hosts[0].size() <= 2;
        middles.insert(arrival(cluster, way.front()));
        for (const Hop& hop : way) bandwidths.insert(cluster.links[hop.link].bandwidth.count());
      }
    return middles.size() <= 1 && bandwidths.size() <= 1;
  }

  /// In the first host, with the edges to the second.
  NcclRings search() {
    NcclRingSearch request;
    request.gpus = static_cast<int>(hosts[0].size());
    request.several_hosts = several_hosts();
    request.all_alike = all_alike();
    const std::size_t gpus = hosts[0].size();
    std::vector<NcclWay> known(2 * gpus * gpus);
    std::unordered_map<int, std::size_t> place;  // in `capacity`, by slot
    request.way = [this, gpus, &known, &place, &request](int from, int to, bool leaves) -> const NcclWay& {
      const auto here = static_cast<std::size_t>(from);
      const auto there = static_cast<std::size_t>(to);
      NcclWay& way = known[(2 * here + (leaves ? 1 : 0)) * gpus + there];
      const std::vector<int>& next = hosts[leaves ? 1 : 0];
      const int to_rank = next[there % next.size()];
      if (!way.links.empty()) return way;
      way.overhead = pair(hosts[0][here], to_rank).overhead;
      for (const Hop& hop : path(hosts[0][here], to_rank)) {
        const Link& link = cluster.links[hop.link];
        if (cluster.node(link.a).host < 0 && cluster.node(link.b).host < 0) continue;  // NCCL sees no fabric
        const auto [found, is_new] = place.try_emplace(hop.slot(), request.capacity.size());
        if (is_new) request.capacity.push_back(planned_with(link));
        way.links.push_back(found->second);
      }
      return way;
    };
    const std::vector<double> tried = speeds(graph.gpu.compute_capability, several_hosts());
    NcclRings found = search_rings(request, tried);
    const std::size_t adapters = cluster.hosts[cluster.node(places[hosts[0][0]]).host].nics.size();
    if (several_hosts() && found.orders.size() < std::min(adapters, gpus)) {  // of rails: other orders
      request.all_alike = false;
      found = search_rings(request, tried);
    }
    if (found.orders.empty()) {
      none_fits = true;
      found = {kFallbackSpeed, {{}}};
      for (int gpu = 0; gpu < request.gpus; ++gpu) found.orders.front().push_back(gpu);
    }
    return found;
  }

  void look_for_rings() {
    const NcclRings found = search();
    graph.channels = static_cast<int>(found.orders.size());
    graph.bandwidth = BytesPerSecond(found.speed);
    const double share = 1.0 / graph.channels;
    std::set<std::vector<int>> cyclic;
    std::map<std::vector<int>, std::size_t> known;
    for (const std::vector<int>& order : found.orders) {
      const auto [ring, is_new] = known.try_emplace(order, graph.rings.size());
      if (is_new)
        graph.rings.push_back({over_all_hosts(order), share});
      else
        graph.rings[ring->second].share += share;
      std::vector<int> from_zero = order;
      std::rotate(from_zero.begin(), std::ranges::min_element(from_zero), from_zero.end());
      cyclic.insert(from_zero);
    }
    graph.same_channels = cyclic.size() == 1;
  }

  /// Ring over all hosts. Each with as many GPUs as the first follows its order; others are left by the GPU
  /// with the index, modulo their number, of that which leaves the first, so that rings share their adapters.
  [[nodiscard]] std::vector<int> over_all_hosts(const std::vector<int>& order) const {
    std::vector<int> ring;
    for (const std::vector<int>& ranks : hosts) {
      for (std::size_t i = 0; i < ranks.size(); ++i)
        ring.push_back(ranks.size() == order.size() ? ranks[order[i]]
                                                    : ranks[(order.back() + 1 + i) % ranks.size()]);
    }
    return ring;
  }

  /// Hardware of the edges, and the pace that the bottleneck link sets. NCCL plans with the nominal rates of
  /// adapters and with those of the first host; the protocol takes its part of them. If no ring fits, NCCL
  /// plans with one of 0.1 GB/s, which then runs at the rate of its links. Scaled links scale the bandwidth
  /// by what the bottleneck link gains, but not what sockets copy.
  void describe_edges() {
    std::unordered_map<int, double> used;
    const double speed = graph.bandwidth.count() * graph.channels;
    for (const NcclRing& ring : graph.rings) {
      for (const auto [i, from] : enumerated(ring.order)) {
        const int to = ring.order[(i + 1) % ring.order.size()];
        const NcclPair& edge = pair(from, to);
        if (edge.hardware == NcclHardware::kNetwork) {
          graph.network_latency = std::max(graph.network_latency, edge.latency);
          if (edge.tcp)
            graph.sockets.message = std::min(graph.sockets.message, nccl_tcp_rate(edge.bandwidth));
          // Sockets read the host's memory, which NCCL counts as behind the CPU.
          graph.through_socket = graph.through_socket || edge.sockets > 0 || edge.tcp;
        } else {
          graph.intra = std::max(graph.intra, edge.hardware);
          graph.sockets_passed = std::max(graph.sockets_passed, edge.sockets);
        }
        for (const Hop& hop : *edge.path) used[hop.slot()] += speed * ring.share * edge.overhead;
      }
    }
    double left = std::numeric_limits<double>::infinity(), scaled = left,
           tcp = left;  // of the bottleneck link
    for (const auto& [where, taken] : used) {
      const Link& link = cluster.links[where / 2];
      scaled = std::min(scaled, link.bandwidth.count() / taken);
      left = std::min(left, (link.bandwidth / link.scale).count() / taken);
      const bool adapter = cluster.node(link.a).host >= 0 || cluster.node(link.b).host >= 0;
      if (graph.tcp() && link.kind == LinkKind::kEthernet && adapter)
        tcp = std::min(tcp, nccl_tcp_rate(link.bandwidth).count() / taken);
    }
    const double pace = none_fits ? left : std::min(1.0, left);
    graph.bandwidth = pace * graph.bandwidth;
    if (!used.empty()) graph.scale = scaled / left;
    graph.sockets.part = std::min(1.0, tcp / (pace * graph.scale));
  }

  /// `ncclTopoDupChannels`.
  void split_channels() {
    const double speed = graph.bandwidth.count();
    if (speed < kLeastSplit) return;
    if (graph.gpu.compute_capability > kAmpere && speed < kLeastSplitHopper && graph.channels > kFewChannels)
      return;
    const int split = std::min(2 * graph.channels, kMostNcclChannels);
    const int parts = (split + graph.channels - 1) / graph.channels;
    graph.bandwidth = graph.bandwidth / parts;
    graph.channels = split;
  }

  /// All ways inside a host lead through its NVSwitch.
  [[nodiscard]] bool at_nvswitch() {
    const auto at_switch = [this](int from, int to) {
      return cluster.node(arrival(cluster, path(from, to).front())).kind == NodeKind::kNvSwitch;
    };
    for (const std::vector<int>& ranks : hosts)
      for (std::size_t i = 0; i < ranks.size(); ++i)
        if (ranks.size() < 2 || !at_switch(ranks[i], ranks[(i + 1) % ranks.size()])) return false;
    return true;
  }

  /// NVLink SHARP: each GPU of a host, at most 32 (NCCL_MAX_NVLS_ARITY), is the head of a channel, at the
  /// highest speed at which all channels fit into every GPU's NVLink. Between hosts the heads share the
  /// bandwidth of the rings.
  void add_nvls() {
    if (nccl_tables(graph.gpu.compute_capability).nvls_efficiency == 0.0) return;
    const auto local = static_cast<int>(hosts[0].size()), heads = std::min(kMostNvlsHeads, local);
    double nvlink = std::numeric_limits<double>::infinity(), scale = nvlink;
    for (const std::vector<int>& ranks : hosts) {
      if (static_cast<int>(ranks.size()) != local) return;
      for (std::size_t i = 0; i < ranks.size(); ++i) {
        const int next = ranks[(i + 1) % ranks.size()];
        const NcclPair& way = pair(ranks[i], next);
        const double here = cluster.links[way.path->front().link].scale;
        nvlink = std::min(nvlink, way.bandwidth.count() / here);
        scale = std::min(scale, here);
      }
    }
    for (const double speed : speeds(graph.gpu.compute_capability, several_hosts())) {
      if (heads * speed > nvlink) continue;
      graph.nvls.channels = heads;
      graph.nvls.scale = scale;
      graph.nvls.bandwidth = BytesPerSecond(scale * speed);
      graph.nvls.network = graph.channels * graph.bandwidth / heads;
      return;
    }
  }

  const Cluster& cluster = graphs.cluster();
  std::vector<std::vector<int>> hosts{};  ///< ranks of the group, by host
  bool none_fits = false;                 ///< of the rings that were tried
  NcclGraph graph{};
};

}  // namespace

BytesPerSecond nccl_tcp_rate(BytesPerSecond wire) {
  return BytesPerSecond(1.0 / (1.0 / wire.count() + 1.0 / kTcpCopied.count()));
}

const NcclGraph& NcclGraphs::of(const std::vector<int>& places) {
  assert(!places.empty());
  return cached(graphs_, places, [&] { return GraphOfGroup{*this, places}.build(); });
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
  pair.parameters = &parameters(device_model(cluster().node(from).device).collectives_as());
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
      std::ranges::count_if(cluster.nodes, [](const Node& node) { return node.kind == NodeKind::kDevice; }));
  const std::string needs = "backend nccl needs a GPU for every rank: cluster '" + cluster.name + "' has ";
  if (devices == 0) throw UsageError("{}no devices", needs);
  const std::set<int> different(place_of_rank.begin(), place_of_rank.end());
  if (different.size() != place_of_rank.size())
    throw UsageError("{}{} for {} ranks", needs, devices, place_of_rank.size());
  for (const int place : place_of_rank)
    if (cluster.node(place).kind != NodeKind::kDevice)
      throw UsageError("{}a rank on '{}'", needs, cluster.node_name(place));
  std::set<bool> vendors;  // true: NVIDIA
  for (const int place : place_of_rank)
    vendors.insert(device_model(cluster.node(place).device).compute_capability > 0);
  if (vendors.size() > 1)
    throw UsageError(
        "cluster '{}' has GPUs of NVIDIA and others, which no library of collectives joins; take one kind",
        cluster.name);
}

}  // namespace stepcast
