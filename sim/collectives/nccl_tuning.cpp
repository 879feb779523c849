#include "sim/collectives/nccl_tuning.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <cmath>
#include <cstdio>

#include "core/error.hpp"

namespace stepcast {
namespace {

constexpr double kMicro = 1e-6;
constexpr double kGiga = 1e9;

// Tables of src/graph/tuning.cc, v2.30.7: microseconds and GB/s.
using ByProtocol = std::array<double, 3>;  // LL, LL128, Simple
constexpr ByProtocol kTreeBase{6.8, 14.0, 8.4};
constexpr ByProtocol kRingBase{6.6, 14.0, 8.4};
constexpr std::array<ByProtocol, 3> kTreeHop{
    {{0.6, 1.25, 4.0}, {1.0, 1.9, 4.0}, {5.0, 8.5, 14.0}}};  // by NcclHardware
constexpr std::array<ByProtocol, 3> kRingHop{{{0.6, 1.9, 3.4}, {1.0, 2.5, 5.7}, {2.7, 4.0, 14.0}}};
constexpr double kNvlsLatency = 25.0;
constexpr double kNvlsTreeHop = 20.9;  // between hosts
constexpr double kNetOverhead = 1.0;   // to post a message, on Intel's processors; Simple posts three

using ByHosts = std::array<double, 3>;        // 1, 2, more
using ByGeneration = std::array<ByHosts, 4>;  // Volta and before, Ampere, Hopper, Blackwell
constexpr ByGeneration kLlMost{
    {{39.0, 39.0, 20.4}, {87.7, 22.5, 19.0}, {141.0, 45.0, 35.0}, {282.0, 90.0, 70.0}}};
constexpr ByGeneration kRingLl128Most{
    {{20.0, 20.0, 20.0}, {20.0, 20.0, 20.0}, {36.7, 36.7, 36.7}, {40.0, 40.0, 40.0}}};
constexpr ByGeneration kTreeLl128Most{
    {{20.0, 20.0, 20.0}, {20.0, 20.0, 20.0}, {36.7, 36.7, 29.0}, {55.6, 31.67, 20.0}}};
constexpr ByGeneration kTreeMost{
    {{26.5, 18.5, 10.0}, {24.0, 23.6, 17.8}, {38.7, 41.4, 36.0}, {70.0, 42.8, 24.0}}};
constexpr ByGeneration kNvlsTreeMost{
    {{26.5, 18.5, 10.0}, {24.0, 23.6, 17.8}, {0.0, 57.7, 45.5}, {0.0, 96.0, 80.0}}};
constexpr std::array<double, 4> kNvlsEfficiency{0.0, 0.0, 0.85, 0.74};

// `treeCorrectionFactor`: by powers of two from 64 B on.
constexpr int kCorrected = 23;
constexpr std::array<std::array<double, 24>, 3> kTreeCorrection{{
    {1.0, 1.0, 1.0, 1.0, .9, .8, .7, .7, .7, .7, .6, .5, .4, .4, .5, .6, .7, .8, .9, 1.0, 1.0, 1.0, 1.0, 1.0},
    {1.0, 1.0, 1.0, 1.0, 1.0, .9, .8, .8, .8, .7, .6, .6, .6, .6, .6, .6, .8, .9, .9, .9, .9, 1.0, 1.0, 1.0},
    {.9, .9, .9, .9, .9, .9, .9, .8, .7, .6, .6, .5, .5, .5, .5, .6, .7, .8, .7, .7, .8, .9, .9, .9},
}};

constexpr double kRingPart = 0.92;  // of LL128 and of trees
constexpr double kTreeLlPart = 1.0 / 3.8;
constexpr double kPlateau = 1.4;  // of a ring between hosts
constexpr double kPlateauBefore80 = 1.9;
constexpr double kPlateauBytes = 64.0;  // per channel and rank
constexpr int kMostBlocks = 64;         // MAXCHANNELS
constexpr int kNvlsBlocks = 16;

constexpr std::size_t index(NcclProtocol protocol) { return static_cast<std::size_t>(protocol); }
constexpr std::size_t index(NcclHardware hardware) { return static_cast<std::size_t>(hardware); }

bool is_nvls(const NcclCost& cost) {
  return cost.algorithm == NcclAlgorithm::kNvls || cost.algorithm == NcclAlgorithm::kNvlsTree;
}

int floor_log2(int value) { return static_cast<int>(std::bit_width(static_cast<unsigned>(value))) - 1; }

/// The model for one graph and collective; microseconds and GB/s.
class Tuning {
 public:
  Tuning(const NcclGraph& graph, CollectiveKind kind, Bytes message)
      : graph_(graph), kind_(kind), message_(message.count()), channels_(graph.channels) {
    const int capability = graph.compute_capability;
    generation_ = capability >= 100 ? 3 : capability >= 90 ? 2 : capability >= 80 ? 1 : 0;
    hosts_ = static_cast<std::size_t>(std::min(graph.nodes, 3) - 1);
    bus_ = channels_ * graph.bandwidth.count() / kGiga;
    all_reduce_ = kind == CollectiveKind::kAllReduce;
    steps_ = all_reduce_                          ? 2 * (graph.ranks - 1)
             : kind == CollectiveKind::kBroadcast ? graph.ranks
                                                  : graph.ranks - 1;
  }

  std::vector<NcclCost> costs() const {
    std::vector<NcclCost> result;
    for (const NcclProtocol protocol : {NcclProtocol::kLl, NcclProtocol::kLl128, NcclProtocol::kSimple}) {
      if (protocol == NcclProtocol::kLl128 && !has_ll128()) continue;
      result.push_back(ring(protocol));
      if (all_reduce_) result.push_back(tree(protocol));
    }
    if (all_reduce_ && graph_.nvls_channels > 1) result.push_back(nvls());
    return result;
  }

 private:
  /// `outside` of the latency is neither the base nor hops inside hosts.
  static NcclCost cost(NcclAlgorithm algorithm, NcclProtocol protocol, double latency, double algbw, int hops,
                       double outside, int network_hops) {
    return {algorithm,
            protocol,
            Seconds(kMicro * latency),
            BytesPerSecond(kGiga * algbw),
            hops,
            Seconds(kMicro * outside),
            network_hops};
  }
  [[nodiscard]] NcclCost ring(NcclProtocol protocol) const {
    const double latency = ring_latency(protocol);
    const int hops = ring_hops();
    const double inside = kRingBase[index(protocol)] + hops * ring_hop(protocol);
    return cost(NcclAlgorithm::kRing, protocol, latency, ring_bus(protocol) * ratio(), hops,
                graph_.nodes > 1 ? std::max(0.0, latency - inside) : 0.0,
                kind_ == CollectiveKind::kBroadcast && graph_.nodes > 1 ? 1 : between());
  }
  [[nodiscard]] NcclCost tree(NcclProtocol protocol) const {
    const std::size_t p = index(protocol);
    const double outside = tree_levels() * inter(kTreeHop[index(NcclHardware::kNetwork)][p], protocol);
    const int hops = 2 * (graph_.ranks / graph_.nodes - 1);
    return cost(NcclAlgorithm::kTree, protocol,
                kTreeBase[p] + hops * kTreeHop[index(graph_.intra)][p] + outside, 0.5 * tree_bus(protocol),
                hops, outside, tree_levels());
  }
  /// Hops between hosts, up and down.
  [[nodiscard]] int tree_levels() const { return 2 * floor_log2(graph_.nodes); }
  [[nodiscard]] double row(const ByGeneration& table) const { return table[generation_][hosts_]; }
  /// Messages of LL: on one host by the GPU, on several by the processor.
  [[nodiscard]] double ll_most() const { return kLlMost[graph_.nodes == 1 ? generation_ : 0][hosts_]; }
  [[nodiscard]] bool has_ll128() const {
    return graph_.compute_capability >= 70 && graph_.intra == NcclHardware::kNvLink && !graph_.through_socket;
  }
  [[nodiscard]] double ratio() const { return static_cast<double>(graph_.ranks) / steps_; }

  [[nodiscard]] double ring_bus(NcclProtocol protocol) const {
    if (protocol == NcclProtocol::kLl) return std::min(ll_most(), 0.5 * bus_);
    if (protocol == NcclProtocol::kLl128) return std::min(kRingPart * bus_, channels_ * row(kRingLl128Most));
    return bus_;
  }

  [[nodiscard]] double tree_bus(NcclProtocol protocol) const {
    const double bus = std::min(kRingPart * bus_, channels_ * row(kTreeMost));
    const double payload = graph_.nodes == 1 ? 7.0 / 9.0 : 120.0 / 128.0;
    const double uncorrected = protocol == NcclProtocol::kLl ? std::min(bus * kTreeLlPart, ll_most())
                               : protocol == NcclProtocol::kLl128
                                   ? std::min(bus * payload, channels_ * row(kTreeLl128Most))
                                   : bus;
    return uncorrected * correction(protocol);
  }
  [[nodiscard]] double correction(NcclProtocol protocol) const {
    if (message_ < 64.0) return 1.0;
    const int power = static_cast<int>(std::floor(std::log2(message_ / 64.0)));
    return power < kCorrected ? kTreeCorrection[index(protocol)][power] : 1.0;
  }

  /// Between hosts: Simple also flushes, which crosses the wire once more.
  ///
  /// NCCL adds to its constants the latency that the network's plugin reports, which is 0 of its own ones
  /// (InfiniBand, sockets): the row `NET` was measured over wires and contains one. To add that of the model
  /// would count it twice; only a wire longer than the constant counts in its place.
  [[nodiscard]] double inter(double hop, NcclProtocol protocol) const {
    const double wire = graph_.network_latency.count() / kMicro;
    return std::max(hop, protocol == NcclProtocol::kSimple ? 2.0 * wire : wire);
  }
  /// Steps of a ring between hosts.
  [[nodiscard]] int between() const { return all_reduce_ ? 2 * (graph_.nodes - 1) : graph_.nodes - 1; }
  [[nodiscard]] int ring_hops() const {
    if (kind_ != CollectiveKind::kBroadcast) return steps_ - between();
    if (graph_.nodes > 1) return 0;
    return graph_.same_channels ? 1 : steps_;
  }
  /// Of a ring, inside hosts.
  [[nodiscard]] double ring_hop(NcclProtocol protocol) const {
    const double intra = kRingHop[index(graph_.intra)][index(protocol)];
    if (graph_.nodes == 1) return intra;
    return std::max(intra, protocol == NcclProtocol::kSimple ? 3.0 * kNetOverhead : kNetOverhead);
  }
  [[nodiscard]] double ring_latency(NcclProtocol protocol) const {
    const std::size_t p = index(protocol);
    const std::size_t network = index(NcclHardware::kNetwork);
    if (kind_ == CollectiveKind::kBroadcast) {
      const std::size_t hardware = graph_.nodes > 1 ? network : index(graph_.intra);
      if (graph_.same_channels) return kRingBase[p] + kRingHop[hardware][p];
      const bool simple = protocol == NcclProtocol::kSimple;
      return kRingBase[p] + steps_ * (simple ? kTreeHop : kRingHop)[hardware][p];
    }
    // One rank per host: latencies are fully exposed.
    const double hop = (graph_.ranks == graph_.nodes ? kTreeHop : kRingHop)[network][p];
    const double latency = kRingBase[p] + ring_hops() * ring_hop(protocol) + between() * inter(hop, protocol);
    const bool plateau = protocol == NcclProtocol::kSimple && graph_.nodes > 1 && all_reduce_ &&
                         message_ / (channels_ * graph_.ranks) >= kPlateauBytes;
    if (!plateau) return latency;
    return latency * (graph_.compute_capability < 80 ? kPlateauBefore80 : kPlateau);
  }
  [[nodiscard]] NcclCost nvls() const {
    const double heads = graph_.nvls_channels;
    double bandwidth =
        2.0 * graph_.nvls_bandwidth.count() / kGiga * kNvlsEfficiency[generation_] * (heads - 1.0) / heads;
    if (graph_.nodes == 1)
      return cost(NcclAlgorithm::kNvls, NcclProtocol::kSimple, kNvlsLatency, heads * bandwidth * ratio(), 0,
                  0.0, 0);
    const double network = graph_.nvls_network.count() / kGiga * (graph_.nodes == 2 ? 2.0 : 1.0);
    bandwidth = std::min({bandwidth, network, row(kNvlsTreeMost)});
    const double outside = tree_levels() * inter(kNvlsTreeHop, NcclProtocol::kSimple);
    return cost(NcclAlgorithm::kNvlsTree, NcclProtocol::kSimple, kNvlsLatency + outside,
                heads * bandwidth * ratio(), 0, outside, tree_levels());
  }

  const NcclGraph& graph_;
  const CollectiveKind kind_;
  const double message_;
  const int channels_;
  std::size_t generation_ = 0;
  std::size_t hosts_ = 0;
  double bus_ = 0.0;  ///< of all channels
  bool all_reduce_ = false;
  int steps_ = 0;
};

}  // namespace

const char* to_text(NcclAlgorithm algorithm) {
  return std::array{"ring", "tree", "NVLS", "NVLS tree"}[static_cast<std::size_t>(algorithm)];
}

const char* to_text(NcclProtocol protocol) { return std::array{"LL", "LL128", "Simple"}[index(protocol)]; }

double wire_factor(NcclProtocol protocol) { return std::array{2.0, 128.0 / 120.0, 1.0}[index(protocol)]; }

std::vector<NcclCost> nccl_costs(const NcclGraph& graph, CollectiveKind kind, Bytes message) {
  assert(graph.ranks > 1 && nccl_tunes(kind));
  return Tuning(graph, kind, message).costs();
}

bool nccl_tunes(CollectiveKind kind) {
  return kind != CollectiveKind::kGather && kind != CollectiveKind::kScatter &&
         kind != CollectiveKind::kAllToAll && kind != CollectiveKind::kShift;
}

NcclCost nccl_choice(const NcclGraph& graph, CollectiveKind kind, Bytes message,
                     std::optional<NcclAlgorithm> wanted) {
  std::vector<NcclCost> costs = nccl_costs(graph, kind, message);
  if (wanted) std::erase_if(costs, [&](const NcclCost& cost) { return cost.algorithm != *wanted; });
  if (costs.empty())
    throw UsageError(std::string("NCCL has no ") + to_text(*wanted) + " for " + to_text(kind) + " over " +
                     std::to_string(graph.ranks) + " GPUs on " + std::to_string(graph.nodes) + " hosts");
  return *std::min_element(costs.begin(), costs.end(), [message](const NcclCost& a, const NcclCost& b) {
    return a.time(message) < b.time(message);
  });
}

int nccl_blocks(const NcclGraph& graph, const NcclCost& choice, Bytes message) {
  if (is_nvls(choice)) return kNvlsBlocks;
  constexpr double kThreads = 512.0;
  constexpr double kThreadsLl128 = 640.0;
  constexpr double kBytesSimple = 64.0;
  constexpr double kBytesLl = 8.0;
  double per_block = kThreads * kBytesSimple;
  if (choice.protocol == NcclProtocol::kLl128) per_block = kThreadsLl128 * kBytesLl;
  if (choice.protocol == NcclProtocol::kLl)
    per_block = kThreads * kBytesLl * (choice.algorithm == NcclAlgorithm::kRing ? graph.ranks : 1);
  const int most = std::min(2 * graph.channels, kMostBlocks);
  return static_cast<int>(
      std::clamp(std::floor(message.count() / per_block), 1.0, static_cast<double>(most)));
}

std::string to_text(const NcclGraph& graph, const NcclCost& choice) {
  const bool nvls = is_nvls(choice);
  const double bandwidth = (nvls ? graph.nvls_bandwidth : graph.bandwidth).count() / kGiga;
  std::array<char, 32> channels{};
  std::snprintf(channels.data(), channels.size(), " %dx%.3g GB/s",
                nvls ? graph.nvls_channels : graph.channels, bandwidth);
  return std::string(to_text(choice.algorithm)) + "/" + to_text(choice.protocol) + channels.data();
}

}  // namespace stepcast
