#pragma once

#include <array>
#include <cstdint>

#include "core/enum_table.hpp"

/// Enumerations of a Schedule, each with one table of its names.
namespace stepcast {

/// Operations of one rank on one stream run in program order, one at a time.
enum class Stream : std::uint8_t {
  kCompute,  ///< stream of the device; on a CPU the main thread of the rank
  kComm,     ///< communication; as many at a time as the backend has in flight
  kCopy,     ///< copy engines
};
inline constexpr auto kStreams = enum_names<Stream>("compute", "comm", "copy");

/// Part of a breakdown that a span counts as. A message is posted long before its peer posts its side, so
/// that its span is mostly a wait: the bubble of a pipeline is idle time.
enum class SpanKind : std::uint8_t { kCompute, kCommunication, kInputAndHost, kOptimizerAndCopies, kWait };
inline constexpr auto kSpanKinds =
    enum_names<SpanKind>("compute", "communication", "input_and_host", "optimizer_and_copies", "wait");

/// A backward is one operation, or two with other work between: the input half, whose gradient the previous
/// segment needs, and the weight half, which only the optimizer needs (Qi et al., "Zero Bubble Pipeline
/// Parallelism", 2023).
enum class Phase : std::uint8_t {
  kForward,
  kRecompute,
  kBackward,
  kBackwardInput,
  kBackwardWeight,
  kLoss,
  kZeroGrad,
  kOptimizer
};
inline constexpr auto kPhases = enum_names<Phase>("forward", "recompute", "backward", "backward_input",
                                                  "backward_weight", "loss", "zero_grad", "optimizer");

/// True if the phase accumulates gradients of parameters: a whole backward, and the weight half.
constexpr bool accumulates(Phase phase) {
  return phase == Phase::kBackward || phase == Phase::kBackwardWeight;
}
constexpr bool is_backward(Phase phase) { return accumulates(phase) || phase == Phase::kBackwardInput; }

enum class CollectiveKind : std::uint8_t {
  kAllReduce,
  kGather,
  kScatter,
  kBroadcast,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kShift
};

/// Properties that distinguish kinds of collectives.
struct CollectiveTraits {
  CollectiveKind value;
  const char* name;
  bool rooted;       ///< one rank is the source or the destination of all bytes
  bool whole_array;  ///< every rank sends or receives the whole array, not a block of it
  bool nccl_kernel;  ///< NCCL has a kernel for it; else it groups sends and receives
  int rounds;        ///< rounds of n - 1 blocks over the busiest link; 0: the whole array crosses it once
  int chakra;        ///< `comm_type` of MLCommons Chakra's execution traces; -1: none
};
inline constexpr std::array kCollectiveKinds{
    CollectiveTraits{CollectiveKind::kAllReduce, "all_reduce", false, true, true, 2, 0},
    CollectiveTraits{CollectiveKind::kGather, "gather", true, false, false, 1, 3},
    CollectiveTraits{CollectiveKind::kScatter, "scatter", true, false, false, 1, 4},
    CollectiveTraits{CollectiveKind::kBroadcast, "broadcast", true, true, true, 0, 5},
    CollectiveTraits{CollectiveKind::kAllGather, "all_gather", false, false, true, 1, 2},
    CollectiveTraits{CollectiveKind::kReduceScatter, "reduce_scatter", false, false, true, 1, 7},
    CollectiveTraits{CollectiveKind::kAllToAll, "all_to_all", false, false, false, 1, 6},
    CollectiveTraits{CollectiveKind::kShift, "shift", false, true, false, 0, -1}};

/// What memory is held for.
enum class MemoryCategory : std::uint8_t {
  kParameters,
  kGradients,
  kOptimizerState,
  kActivations,
  kCommunication,
};
inline constexpr auto kMemoryCategories = enum_names<MemoryCategory>(
    "parameters", "gradients", "optimizer_state", "activations", "communication_buffers");

static_assert(kPhases.back().value == Phase::kOptimizer &&
              kMemoryCategories.back().value == MemoryCategory::kCommunication &&
              kCollectiveKinds.back().value == CollectiveKind::kShift);

constexpr const char* to_text(Stream stream) { return row_of(kStreams, stream).name; }
constexpr const char* to_text(SpanKind kind) { return row_of(kSpanKinds, kind).name; }
constexpr const char* to_text(Phase phase) { return row_of(kPhases, phase).name; }
constexpr const CollectiveTraits& traits(CollectiveKind kind) { return row_of(kCollectiveKinds, kind); }
constexpr const char* to_text(CollectiveKind kind) { return traits(kind).name; }
constexpr const char* to_text(MemoryCategory category) { return row_of(kMemoryCategories, category).name; }

/// busbw / algbw of a collective over n ranks: rounds (n - 1)/n; 1 for 0 rounds.
/// Source: nccl-tests, doc/PERFORMANCE.md.
constexpr double bus_factor(CollectiveKind kind, int ranks) {
  const int rounds = traits(kind).rounds;
  return rounds == 0 ? 1.0 : rounds * (ranks - 1.0) / ranks;
}

/// Bytes by category.
using MemoryBytes = EnumArray<kMemoryCategories, double>;
inline double total(const MemoryBytes& bytes) { return sum_of(bytes, std::identity()); }

}  // namespace stepcast
