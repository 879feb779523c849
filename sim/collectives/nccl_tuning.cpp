#include "sim/collectives/nccl_tuning.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <cmath>

#include "core/error.hpp"
#include "schedule/kinds.hpp"
#include "topologies/nccl_tables.hpp"

namespace stepcast {
namespace {

constexpr int kMostBlocks = 64;  // MAXCHANNELS
constexpr int kNvlsBlocks = 16;

constexpr std::size_t index(NcclHardware hardware) { return static_cast<std::size_t>(hardware); }

int floor_log2(int value) { return static_cast<int>(std::bit_width(static_cast<unsigned>(value))) - 1; }

/// The model for one graph and collective; microseconds and GB/s.
struct Tuning {
  const NcclGraph& graph;
  const CollectiveKind kind;
  const double message;
  const double scale = 1.0, nvls_scale = 1.0;  ///< of the graph's bandwidths that do not count

  std::vector<NcclCost> costs() const {
    std::vector<NcclCost> result;
    for (const NcclProtocol protocol : {NcclProtocol::kLl, NcclProtocol::kLl128, NcclProtocol::kSimple}) {
      if (protocol == NcclProtocol::kLl128 && !has_ll128()) continue;
      if (protocol != NcclProtocol::kSimple || has_simple_ring()) result.push_back(ring(protocol));
      if (all_reduce) result.push_back(tree(protocol));
    }
    if (all_reduce && graph.nvls.channels > 1) result.push_back(nvls());
    return result;
  }

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
    const double inside = constants.ring_base[index(protocol)] + hops * ring_hop(protocol);
    return cost(NcclAlgorithm::kRing, protocol, latency, ring_bus(protocol) * ratio(), hops,
                graph.nodes > 1 ? std::max(0.0, latency - inside) : 0.0,
                broadcast() && graph.nodes > 1 ? 1 : between());
  }
  [[nodiscard]] NcclCost tree(NcclProtocol protocol) const {
    const std::size_t p = index(protocol);
    const double outside =
        tree_levels() * inter(constants.tree_hop[index(NcclHardware::kNetwork)][p], protocol);
    const int hops = 2 * (graph.ranks / graph.nodes - 1);
    return cost(NcclAlgorithm::kTree, protocol,
                constants.tree_base[p] + hops * constants.tree_hop[index(graph.intra)][p] + outside,
                0.5 * tree_bus(protocol), hops, outside, tree_levels());
  }
  [[nodiscard]] bool broadcast() const { return kind == CollectiveKind::kBroadcast; }
  /// Hops between hosts, up and down.
  [[nodiscard]] int tree_levels() const { return 2 * floor_log2(graph.nodes); }
  [[nodiscard]] bool has_ll128() const {
    return graph.gpu.compute_capability >= 70 && graph.intra == NcclHardware::kNvLink &&
           !graph.through_socket && tables.ring_ll128_most[hosts] > 0.0;
  }
  [[nodiscard]] bool has_simple_ring() const {
    return !all_reduce || graph.nodes == 1 || message >= tables.ring_from;
  }
  [[nodiscard]] double ratio() const { return static_cast<double>(graph.ranks) / steps; }

  [[nodiscard]] double ring_bus(NcclProtocol protocol) const {
    if (protocol == NcclProtocol::kLl) return std::min(tables.ll_most[hosts], 0.5 * bus);
    if (protocol == NcclProtocol::kLl128)
      return std::min(constants.ring_part * bus, graph.channels * tables.ring_ll128_most[hosts]);
    return bus;
  }

  [[nodiscard]] double tree_bus(NcclProtocol protocol) const {
    const double limited = std::min(constants.ring_part * bus, graph.channels * tables.tree_most[hosts]);
    const double payload = graph.nodes == 1 ? 7.0 / 9.0 : 120.0 / 128.0;
    const double uncorrected =
        protocol == NcclProtocol::kLl ? std::min(limited * constants.tree_ll_part, tables.ll_most[hosts])
        : protocol == NcclProtocol::kLl128
            ? std::min(limited * payload, graph.channels * tables.tree_ll128_most[hosts])
            : limited;
    return uncorrected * correction(protocol);
  }
  [[nodiscard]] double correction(NcclProtocol protocol) const {
    if (message < 64.0) return 1.0;
    const int power = static_cast<int>(std::floor(std::log2(message / 64.0)));
    const std::vector<double>& parts = constants.tree_correction[index(protocol)];
    return power + 1 < static_cast<int>(parts.size()) ? parts[static_cast<std::size_t>(power)] : 1.0;
  }

  /// Between hosts: Simple also flushes, which crosses the wire once more.
  ///
  /// NCCL adds to its constants the latency that the network's plugin reports, which is 0 of its own ones
  /// (InfiniBand, sockets): the row `NET` was measured over wires and contains one. To add that of the model
  /// would count it twice; only a wire longer than the constant counts in its place.
  [[nodiscard]] double inter(double hop, NcclProtocol protocol) const {
    const double wire = graph.network_latency.count() / kMicro;
    return std::max(hop, protocol == NcclProtocol::kSimple ? 2.0 * wire : wire);
  }
  /// Steps of a ring between hosts.
  [[nodiscard]] int between() const { return all_reduce ? 2 * (graph.nodes - 1) : graph.nodes - 1; }
  [[nodiscard]] int ring_hops() const {
    if (!broadcast()) return steps - between();
    if (graph.nodes > 1) return 0;
    return graph.same_channels ? 1 : steps;
  }
  /// Latency of a hop of a ring inside hosts.
  [[nodiscard]] double ring_hop(NcclProtocol protocol) const {
    const double intra = constants.ring_hop[index(graph.intra)][index(protocol)];
    if (graph.nodes == 1) return intra;
    return std::max(
        intra, protocol == NcclProtocol::kSimple ? 3.0 * constants.net_overhead : constants.net_overhead);
  }
  [[nodiscard]] double ring_latency(NcclProtocol protocol) const {
    const std::size_t p = index(protocol);
    const std::size_t network = index(NcclHardware::kNetwork);
    if (broadcast()) {
      const std::size_t hardware = graph.nodes > 1 ? network : index(graph.intra);
      if (graph.same_channels) return constants.ring_base[p] + constants.ring_hop[hardware][p];
      const bool simple = protocol == NcclProtocol::kSimple;
      return constants.ring_base[p] + steps * (simple ? constants.tree_hop : constants.ring_hop)[hardware][p];
    }
    // One rank per host: latencies are fully exposed.
    const double hop = (graph.ranks == graph.nodes ? constants.tree_hop : constants.ring_hop)[network][p];
    const double latency =
        constants.ring_base[p] + ring_hops() * ring_hop(protocol) + between() * inter(hop, protocol);
    const bool plateau = protocol == NcclProtocol::kSimple && graph.nodes > 1 && all_reduce &&
                         message / (graph.channels * graph.ranks) >= constants.plateau_bytes;
    if (!plateau) return latency;
    return latency * (graph.gpu.compute_capability < 80 ? constants.plateau_before_80 : constants.plateau);
  }
  [[nodiscard]] NcclCost nvls() const {
    const double heads = graph.nvls.channels;
    double bandwidth = 2.0 * graph.nvls.bandwidth.count() / nvls_scale / kGiga * tables.nvls_efficiency *
                       (heads - 1.0) / heads;
    if (graph.nodes == 1)
      return cost(NcclAlgorithm::kNvls, NcclProtocol::kSimple, constants.nvls, heads * bandwidth * ratio(), 0,
                  0.0, 0);
    const double network = graph.nvls.network.count() / scale / kGiga * (graph.nodes == 2 ? 2.0 : 1.0);
    bandwidth = std::min({bandwidth, network, tables.nvls_tree_most[hosts]});
    const double outside = tree_levels() * inter(constants.nvls_tree_hop, NcclProtocol::kSimple);
    return cost(NcclAlgorithm::kNvlsTree, NcclProtocol::kSimple, constants.nvls + outside,
                heads * bandwidth * ratio(), 0, outside, tree_levels());
  }

  const NcclTables& tables = nccl_tables(graph.gpu.compute_capability);
  const NcclConstants& constants = nccl_constants();
  const std::size_t hosts = static_cast<std::size_t>(std::min(graph.nodes, 3) - 1);  ///< row of the tables
  const double bus = graph.channels * graph.bandwidth.count() / scale / kGiga;       ///< of all channels
  const bool all_reduce = kind == CollectiveKind::kAllReduce;
  const int steps = broadcast() ? graph.ranks : nccl_ring_steps(kind, graph.ranks);
};

}  // namespace

const char* to_text(NcclAlgorithm algorithm) {
  return std::array{"ring", "tree", "NVLS", "NVLS tree"}[static_cast<std::size_t>(algorithm)];
}

const char* to_text(NcclProtocol protocol) { return std::array{"LL", "LL128", "Simple"}[index(protocol)]; }

double wire_factor(NcclProtocol protocol) { return std::array{2.0, 128.0 / 120.0, 1.0}[index(protocol)]; }

std::vector<NcclCost> nccl_costs(const NcclGraph& graph, CollectiveKind kind, Bytes message) {
  assert(graph.ranks > 1 && traits(kind).nccl_kernel);
  return Tuning{graph, kind, message.count()}.costs();
}

int nccl_ring_steps(CollectiveKind kind, int ranks) { return traits(kind).rounds * (ranks - 1); }

NcclCost nccl_choice(const NcclGraph& graph, CollectiveKind kind, Bytes message, const NcclLimits& limits) {
  std::vector<NcclCost> planned = Tuning{graph, kind, message.count(), graph.scale, graph.nvls.scale}.costs();
  std::erase_if(planned, [&](const NcclCost& cost) {
    return (limits.algorithm && cost.algorithm != *limits.algorithm) || (!limits.nvls && cost.is_nvls());
  });
  if (planned.empty())
    throw UsageError("NCCL has no {} for {} over {} GPUs on {} hosts", to_text(*limits.algorithm),
                     to_text(kind), graph.ranks, graph.nodes);
  const NcclCost least =
      *std::ranges::min_element(planned, {}, [&](const NcclCost& one) { return one.time(message); });
  if (graph.scale == 1.0 && graph.nvls.scale == 1.0) return least;
  const std::vector<NcclCost> scaled = nccl_costs(graph, kind, message);  // of the same choices
  return *std::ranges::find_if(scaled, [&](const NcclCost& one) {
    return one.algorithm == least.algorithm && one.protocol == least.protocol;
  });
}

int nccl_blocks(const NcclGraph& graph, const NcclCost& choice, Bytes message) {
  if (choice.is_nvls()) return kNvlsBlocks;
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
  const bool nvls = choice.is_nvls();
  const double bandwidth = (nvls ? graph.nvls.bandwidth : graph.bandwidth).count() / kGiga;
  return fmt::format("{}/{} {}x{:.3g} GB/s", to_text(choice.algorithm), to_text(choice.protocol),
                     nvls ? graph.nvls.channels : graph.channels, bandwidth);
}

}  // namespace stepcast
