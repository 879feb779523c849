#pragma once

#include "sim/collectives/nccl_graph.hpp"
#include "sim/collectives/nccl_tuning.hpp"

/// Time of NCCL's collectives as measured, after NCCL's choice of algorithm and protocol.
namespace stepcast {

/// Latency and bandwidth that a choice reaches with a message of S bytes on n ranks.
///
/// NCCL's formulas (nccl_tuning.hpp) predict its choice well and its times poorly. With the parameters of the
/// GPU's generation (nccl.yaml), the protocol p, w steps, of which v are inside hosts, k = w/n, and `network`
/// as NCCL counts the steps between hosts:
///
///     T    = launch + start_p + v hop_p + fill_p + network + S (k / W_p + 1 / (n local))
///
///     LL      start 0;  fill = x (ll_fill + ll_fill_hop w) + ll_blocks (1 - 1/blocks)
///             x = min(1, S / (n 4 KiB))
///             W = min(ll_rate, bus/2), a rank's own share goes at ll_rate
///     LL128   fill 0;   W = ll128_reached bus
///     Simple  fill = (simple_fill + simple_fill_hop w) S / (S + 64 MiB);   W = bus
///     NVLS    launch + nvls_start + nvls_fill S / (S + 16 MiB) + network + S / algbw
///
/// `bus` is the bandwidth of the search; over PCIe its part `pcie_reached`, and for rings that leave a PCIe
/// switch at most `socket_rate` and `sockets_rate` if they are set, times `host_burst` for messages up to 1.5
/// MB. A hop over PCIe takes 0.4, 0.6 or 2.3 us longer (the difference of NCCL's constants). A rank copies
/// its own share S/n at the part `local` of its memory bandwidth; a broadcast copies none.
///
/// Between hosts on Ethernet (nccl_tcp_rate) a hop takes 20 us longer, and algbw is limited by the sockets.
/// NCCL's choice does not depend on that.
///
/// Not modelled: dtypes (int8 sums are about 5 % slower). Terms between hosts are NCCL's own; there are no
/// measurements of them. Source: docs/nccl.md.
NcclCost nccl_reached(const NcclGraph& graph, CollectiveKind kind, Bytes message, const NcclCost& choice);

/// All-to-all of S bytes per rank, by grouped sends and receives, with q = S/n for each peer:
///
///     T = launch + message_start + message_peer (n - 1) + min(q, message_first) / message_rate
///         + message_fill S / (S + 64 MiB) + S ((m - 1)/n / bus + 1 / (n local)) + S / (n tcp)
///
/// m: most ranks on one host. What links between hosts move comes after what moves inside: of DeepSeek-V3's
/// tokens on 16, 32 and 64 H100 (arXiv 2603.07685, table 7) the sum of both is within 5 % of the measured
/// times, the longer one 4 to 13 % below. No measurement has slower links inside than between hosts. `tcp`:
/// of the sockets of one message on Ethernet (nccl_tcp_rate). `bus` counts half up to 32 KiB per peer (LL).
NcclCost nccl_all_to_all(const NcclGraph& graph, Bytes message);

/// Latency and bandwidth of a call on a group of GPUs: NCCL's choice as nccl_reached(), or its grouped sends
/// and receives. Replay, bounds of plans, calibration and benchmarks take NCCL's time from here.
/// \pre the kind has an NCCL kernel or is all-to-all
NcclCost nccl_cost(const NcclGraph& graph, CollectiveKind kind, Bytes message, const NcclLimits& limits = {});

/// A message between two GPUs: launch + message_start + message_peer + min(q, message_first) / message_rate,
/// one hop more between hosts. LL up to 16 KiB (NCCL_P2P_LL_THRESHOLD), else Simple; algbw is of the payload.
NcclCost nccl_point_to_point(const NcclPair& pair, Bytes message);

}  // namespace stepcast
