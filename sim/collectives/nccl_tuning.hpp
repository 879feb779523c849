#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "schedule/schedule.hpp"
#include "sim/collectives/nccl_graph.hpp"

/// NCCL's choice of an algorithm and a protocol for a collective, and the time that it expects;
/// nccl_reached.hpp has the time that the collective takes.
namespace stepcast {

/// kNvls and kNvlsTree: NVLink SHARP, where NVSwitches add and multiply; with trees between hosts.
enum class NcclAlgorithm : std::uint8_t { kRing, kTree, kNvls, kNvlsTree };
/// LL: 8 bytes of which 4 are a flag; LL128: 120 of 128 bytes are payload; Simple: all, with fences between
/// chunks.
enum class NcclProtocol : std::uint8_t { kLl, kLl128, kSimple };
const char* to_text(NcclAlgorithm algorithm);
const char* to_text(NcclProtocol protocol);
/// Index in rows by protocol.
constexpr std::size_t index(NcclProtocol protocol) { return static_cast<std::size_t>(protocol); }

/// Bytes on the wire per byte of payload: 2, 128 / 120, 1.
double wire_factor(NcclProtocol protocol);

/// Cost of one algorithm with one protocol: T(S) = latency + S / algbw.
struct NcclCost {
  NcclAlgorithm algorithm = NcclAlgorithm::kRing;
  NcclProtocol protocol = NcclProtocol::kSimple;
  Seconds latency{0};
  BytesPerSecond algbw;
  int hops = 0;           ///< of the latency, inside hosts
  Seconds in_network{0};  ///< of the latency, what is between hosts
  int network_hops = 0;   ///< in it
  [[nodiscard]] Seconds time(Bytes message) const { return latency + message / algbw; }
  [[nodiscard]] bool is_nvls() const {
    return algorithm == NcclAlgorithm::kNvls || algorithm == NcclAlgorithm::kNvlsTree;
  }
};

/// All that NCCL may choose for a collective of `message` bytes, the total array.
///
/// After `ncclTopoTuneModel` and `ncclTopoGetAlgoTime` in src/graph/tuning.cc of NCCL v2.30.7, with its
/// constants. With n ranks on N hosts, C channels of B each and s = 2 (n - 1) steps for all-reduce, n - 1 for
/// all-gather and reduce-scatter:
///
///     ring        algbw = bus n/s
///                 bus: LL min(llMax, C B / 2), LL128 min(.92 C B, C perChannel), Simple C B
///                 latency = base + (s - s') intra + s' inter,  s' = 2 (N - 1), half of it, or 0
///     tree        all-reduce alone; algbw = bus/2
///                 bus: Simple min(.92 C B, C perChannel), of which LL takes 1/3.8, LL128 7/9 on one host and
///                 120/128 on several
///                 latency = base + 2 (n/N - 1) intra + 2 floor(log2 N) inter
///     NVLS        all-reduce on one host: algbw = 2 h B e (h - 1)/h n/s, h heads, e = .85 (Blackwell .74)
///                 latency = 25 us
///     NVLS tree   the same on several hosts, bounded by the network
///                 latency = 25 us + 2 floor(log2 N) inter
///     broadcast   ring: algbw = bus
///                 latency = base + intra, or base + n intra where rings differ in their order
///
/// LL128 only from compute capability 7.0 on, where NVLink joins the GPUs of a host and no socket lies
/// between GPU and NIC; NVLS from 9.0 on at NVSwitches. `inter` is NCCL's constant or the latency of the
/// modelled wire, whichever is longer. On several hosts the ring's latency under Simple grows by 1.4 (1.9
/// before 8.0) from 64 B per channel and rank on, and the tree's bandwidth has NCCL's correction by size.
/// Left out: CollNet, PAT, NVLS for all-gather and reduce-scatter (it never wins on one host), processors
/// other than Intel's.
std::vector<NcclCost> nccl_costs(const NcclGraph& graph, CollectiveKind kind, Bytes message);

/// Steps of a ring: 2 (n - 1) or n - 1. \pre kind is all-reduce, all-gather or reduce-scatter
int nccl_ring_steps(CollectiveKind kind, int ranks);

/// Restrictions of NCCL's choice.
struct NcclLimits {
  std::optional<NcclAlgorithm> algorithm{};  ///< as NCCL_ALGO; empty: any
  bool nvls = true;                          ///< false: no NVLS and no NVLS tree, as for int8
};
/// The option with the least time on links that are not scaled: NCCL does not know of a scale. \pre
/// graph.ranks > 1, the kind has an NCCL kernel \throws UsageError if NCCL does not have the algorithm
NcclCost nccl_choice(const NcclGraph& graph, CollectiveKind kind, Bytes message,
                     const NcclLimits& limits = {});

/// Blocks, each of which occupies a multiprocessor, that a collective starts on every GPU: two per channel of
/// the search, up to 64; NVLS 16. Small messages start fewer: `ncclGetAlgoInfo` in src/enqueue.cc requires
/// 64 B (LL and LL128: 8 B, of a ring's LL times n) for each of a block's 512 threads (LL128: 640).
int nccl_blocks(const NcclGraph& graph, const NcclCost& choice, Bytes message);

/// `ring/Simple 12x30 GB/s`.
std::string to_text(const NcclGraph& graph, const NcclCost& choice);

}  // namespace stepcast
