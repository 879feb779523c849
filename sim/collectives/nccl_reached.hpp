#pragma once

#include "sim/collectives/nccl_graph.hpp"
#include "sim/collectives/nccl_tuning.hpp"

/// How long NCCL's collectives take once NCCL has chosen, as measured ones do.
namespace stepcast {

/// Latency and bandwidth that a choice reaches with a message of S bytes on n ranks.
///
/// NCCL's formulas (nccl_tuning.hpp) choose well and foretell less well. With the laws of the GPU's
/// generation (nccl.yaml), p for a protocol, w steps on the way, v of them inside hosts, k = w/n, and
/// `network` what NCCL counts of the others:
///
///     T    = launch + start_p + v hop_p + fill_p + network + S (k / W_p + 1 / (n local))
///
///     LL      start 0;  fill = x (ll_fill + ll_fill_hop w) + ll_blocks (1 - 1/blocks),  x = min(1, S / (n 4 KiB))
///             W = min(ll_rate, bus/2), a rank's own share goes at ll_rate
///     LL128   fill 0;   W = ll128_reached bus
///     Simple  fill = (simple_fill + simple_fill_hop w) S / (S + 64 MiB);   W = bus
///     NVLS    launch + nvls_start + nvls_fill S / (S + 16 MiB) + network + S / algbw
///
/// `bus` is what the search found: of PCIe the part `pcie_reached`, and of rings that leave a PCIe switch no
/// more than `socket_rate` and `sockets_rate` where they are set, of which messages up to 1.5 MB get
/// `host_burst` times as much. A hop over PCIe takes longer by what NCCL's own constants differ by: 0.4, 0.6,
/// 2.3 us. A rank copies its own share of the array, S/n, at the part `local` of its memory's bandwidth; a
/// broadcast has none.
///
/// Between hosts on Ethernet (nccl_tcp_rate): every hop between them takes 20 us longer, and algbw is the
/// part of it that sockets move. NCCL does not know that and chooses as ever.
///
/// Left out: dtypes (int8 is some 5 % slower where it is added). Of several hosts nothing was measured: what
/// is theirs alone stays NCCL's. Source: docs/nccl.md.
NcclCost nccl_reached(const NcclGraph& graph, CollectiveKind kind, Bytes message, const NcclCost& choice);

/// All-to-all of S bytes per rank, by grouped sends and receives, of which every peer gets q = S/n:
///
///     T = launch + message_start + message_peer (n - 1) + min(q, message_first) / message_rate
///         + message_fill S / (S + 64 MiB) + S ((m - 1)/n / bus + 1 / (n local))
///
/// m: ranks of the fullest host; what goes between hosts their links say. Up to 32 KiB for a peer, which go
/// by LL, bus counts half.
NcclCost nccl_all_to_all(const NcclGraph& graph, Bytes message);

/// A message between two GPUs: launch + message_start + message_peer + min(q, message_first) / message_rate,
/// one hop more between hosts. LL up to 16 KiB (NCCL_P2P_LL_THRESHOLD), else Simple; algbw is of the payload.
NcclCost nccl_point_to_point(const NcclPair& pair, Bytes message);

}  // namespace stepcast
