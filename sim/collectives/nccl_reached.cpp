#include "sim/collectives/nccl_reached.hpp"

#include <algorithm>
#include <array>
#include <cassert>

#include "schedule/kinds.hpp"

namespace stepcast {
namespace {

constexpr std::array<double, 3> kPcieHop{0.4, 0.6, 2.3};      // us over one of NVLink, by protocol
constexpr std::array<double, 3> kNetworkHop{2.7, 4.0, 14.0};  // us, of a ring's, by protocol
constexpr double kLlBlock = 4.0 * kKibi;
constexpr double kSimpleHalf = 64.0 * kMebi;
constexpr double kNvlsHalf = 16.0 * kMebi;
constexpr double kBurst = 1.5e6;
constexpr double kLlPeer = 32.0 * kKibi;
constexpr double kLlMessage = 16.0 * kKibi;

double filled(double bytes, double half) { return bytes / (bytes + half); }

/// GB/s that the rings of a group carry.
double bus_of(const NcclGraph& graph, double message) {
  const NcclParameters& parameters = *graph.gpu.parameters;
  const double planned = graph.channels * graph.bandwidth.count() / kGiga;
  if (graph.intra != NcclHardware::kPcie) return planned;
  const double through = graph.sockets_passed > 1 ? parameters.sockets_rate : parameters.socket_rate;
  const double reached = planned * parameters.pcie_reached;
  if (graph.sockets_passed == 0 || through == 0.0) return reached;
  return std::min(reached, through * (message <= kBurst ? parameters.host_burst : 1.0));
}

/// us per byte of a rank's own share.
double own_share(const NcclGraph& graph) {
  const double rate = graph.gpu.parameters->local * graph.gpu.memory_bandwidth.count() / kGiga;
  return 1e-3 / (graph.ranks * rate);
}

/// The choice with a latency in us, and us per byte.
NcclCost cost_of(const NcclCost& choice, double latency, double per_byte) {
  NcclCost cost = choice;
  cost.latency = Seconds(kMicro * latency);
  cost.algbw = BytesPerSecond(1.0 / (kMicro * per_byte));
  return cost;
}

Seconds tcp_latency(const NcclGraph& graph, const NcclCost& choice) {
  return (graph.tcp() ? choice.network_hops : 0.0) * kNcclTcpHop;
}

/// Rings and trees.
struct Reached {
  const NcclGraph& graph;
  const CollectiveKind kind;
  const double message;
  const NcclCost& choice;

  [[nodiscard]] NcclCost cost() const {
    const double part = kind == CollectiveKind::kBroadcast ? 0.0 : own_part();
    return cost_of(choice, latency(), 1e-3 / algbw() + part);
  }

  [[nodiscard]] double own_part() const {
    if (choice.protocol == NcclProtocol::kLl) return 1e-3 / (graph.ranks * parameters.ll_rate);
    return own_share(graph);
  }
  [[nodiscard]] int steps() const {
    const bool ring_steps = choice.algorithm == NcclAlgorithm::kRing && kind != CollectiveKind::kBroadcast;
    return ring_steps ? nccl_ring_steps(kind, graph.ranks) : choice.hops;
  }

  [[nodiscard]] double latency() const {
    const bool pcie = graph.intra == NcclHardware::kPcie;
    const double hop = hop_of(choice.protocol) + (pcie ? kPcieHop[index(choice.protocol)] : 0.0);
    return parameters.launch + start() + choice.hops * hop + fill() +
           (choice.in_network + tcp_latency(graph, choice)).count() / kMicro;
  }
  [[nodiscard]] double hop_of(NcclProtocol protocol) const {
    constexpr std::array kHops{&NcclParameters::ll_hop, &NcclParameters::ll128_hop,
                               &NcclParameters::simple_hop};
    return parameters.*kHops[index(protocol)];
  }
  [[nodiscard]] double start() const {
    if (choice.protocol == NcclProtocol::kLl) return 0.0;
    return choice.protocol == NcclProtocol::kLl128 ? parameters.ll128_start : parameters.simple_start;
  }
  [[nodiscard]] double fill() const {
    if (choice.protocol == NcclProtocol::kLl128) return 0.0;
    if (choice.protocol == NcclProtocol::kSimple)
      return (parameters.simple_fill + parameters.simple_fill_hop * steps()) * filled(message, kSimpleHalf);
    const double block = std::min(1.0, message / graph.ranks / kLlBlock);
    const double blocks = nccl_blocks(graph, choice, Bytes(message));
    return block * (parameters.ll_fill + parameters.ll_fill_hop * steps()) +
           parameters.ll_blocks * (1.0 - 1.0 / blocks);
  }

  /// By the parameters for rings on one host; else by NCCL's formulas.
  [[nodiscard]] double algbw() const {
    const double planned = choice.algbw.count() / kGiga;
    if (graph.nodes > 1 || choice.algorithm != NcclAlgorithm::kRing) return graph.sockets.part * planned;
    const double bus = bus_of(graph, message);
    const double reached = choice.protocol == NcclProtocol::kLl      ? std::min(parameters.ll_rate, 0.5 * bus)
                           : choice.protocol == NcclProtocol::kLl128 ? parameters.ll128_reached * bus
                                                                     : bus;
    return reached / bus_factor(kind, graph.ranks);
  }

  const NcclParameters& parameters = *graph.gpu.parameters;
};

NcclCost reached_by_nvls(const NcclGraph& graph, double message, const NcclCost& choice) {
  const NcclParameters& parameters = *graph.gpu.parameters;
  NcclCost cost = choice;
  cost.algbw = graph.sockets.part * choice.algbw;
  cost.latency = choice.in_network + tcp_latency(graph, choice) +
                 Seconds(kMicro * (parameters.launch + parameters.nvls_start +
                                   parameters.nvls_fill * filled(message, kNvlsHalf)));
  return cost;
}

double message_latency(const NcclParameters& parameters, double bytes, int peers) {
  const double first = std::min(bytes, parameters.message_first * kKibi);
  return parameters.launch + parameters.message_start + parameters.message_peer * peers +
         first * 1e-3 / parameters.message_rate;
}

}  // namespace

NcclCost nccl_reached(const NcclGraph& graph, CollectiveKind kind, Bytes message, const NcclCost& choice) {
  assert(graph.gpu.parameters != nullptr && graph.ranks > 1);
  if (choice.is_nvls()) return reached_by_nvls(graph, message.count(), choice);
  return Reached{graph, kind, message.count(), choice}.cost();
}

NcclCost nccl_all_to_all(const NcclGraph& graph, Bytes message) {
  assert(graph.gpu.parameters != nullptr && graph.ranks > 1);
  const double bytes = message.count();
  const double peer = bytes / graph.ranks;
  std::vector<int> ranks(graph.nodes, 0);
  for (const int node : graph.node_of_rank) ++ranks[node];
  const double near = *std::ranges::max_element(ranks) - 1.0;
  NcclCost choice;
  choice.protocol = peer <= kLlPeer ? NcclProtocol::kLl : NcclProtocol::kSimple;
  const double bus = bus_of(graph, bytes) * (choice.protocol == NcclProtocol::kLl ? 0.5 : 1.0);
  double latency = message_latency(*graph.gpu.parameters, peer, graph.ranks - 1) +
                   graph.gpu.parameters->message_fill * filled(bytes, kSimpleHalf);
  if (graph.tcp()) latency += kNcclTcpHop.count() / kMicro;
  const double inside = 1e-3 * near / graph.ranks / bus + own_share(graph);
  if (graph.nodes == 1) return cost_of(choice, latency, inside);
  latency += kNetworkHop[index(choice.protocol)] + bytes * inside;
  return cost_of(choice, latency, 1.0 / (kMicro * graph.ranks * graph.sockets.message.count()));
}

NcclCost nccl_cost(const NcclGraph& graph, CollectiveKind kind, Bytes message, const NcclLimits& limits) {
  if (!traits(kind).nccl_kernel) return nccl_all_to_all(graph, message);
  return nccl_reached(graph, kind, message, nccl_choice(graph, kind, message, limits));
}

NcclCost nccl_point_to_point(const NcclPair& pair, Bytes message) {
  assert(pair.parameters != nullptr);
  NcclCost cost;
  cost.protocol = message.count() <= kLlMessage ? NcclProtocol::kLl : NcclProtocol::kSimple;
  const std::size_t p = index(cost.protocol);
  double hop = 0.0;
  if (pair.hardware == NcclHardware::kPcie) hop = kPcieHop[p];
  if (pair.hardware == NcclHardware::kNetwork) hop = kNetworkHop[p];
  hop = std::max(hop, pair.latency.count() / kMicro);
  if (pair.tcp) hop += kNcclTcpHop.count() / kMicro;
  cost.latency = Seconds(kMicro * (message_latency(*pair.parameters, message.count(), 1) + hop));
  cost.algbw = (pair.tcp ? nccl_tcp_rate(pair.bandwidth) : pair.bandwidth) / wire_factor(cost.protocol);
  return cost;
}

}  // namespace stepcast
