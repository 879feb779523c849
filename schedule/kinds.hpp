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
inline constexpr std::array kStreams{EnumName{Stream::kCompute, "compute"}, EnumName{Stream::kComm, "comm"},
                                     EnumName{Stream::kCopy, "copy"}};

/// Part of a breakdown that a span counts as. A message is posted long before its peer posts its side, so
/// that its span is mostly a wait: the bubble of a pipeline is idle time.
enum class SpanKind : std::uint8_t { kCompute, kCommunication, kInputAndHost, kOptimizerAndCopies, kWait };
inline constexpr std::array kSpanKinds{
    EnumName{SpanKind::kCompute, "compute"}, EnumName{SpanKind::kCommunication, "communication"},
    EnumName{SpanKind::kInputAndHost, "input_and_host"},
    EnumName{SpanKind::kOptimizerAndCopies, "optimizer_and_copies"}, EnumName{SpanKind::kWait, "wait"}};

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
inline constexpr std::array kPhases{EnumName{Phase::kForward, "forward"},
                                    EnumName{Phase::kRecompute, "recompute"},
                                    EnumName{Phase::kBackward, "backward"},
                                    EnumName{Phase::kBackwardInput, "backward_input"},
                                    EnumName{Phase::kBackwardWeight, "backward_weight"},
                                    EnumName{Phase::kLoss, "loss"},
                                    EnumName{Phase::kZeroGrad, "zero_grad"},
                                    EnumName{Phase::kOptimizer, "optimizer"}};

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
inline constexpr std::array kCollectiveKinds{EnumName{CollectiveKind::kAllReduce, "all_reduce"},
                                             EnumName{CollectiveKind::kGather, "gather"},
                                             EnumName{CollectiveKind::kScatter, "scatter"},
                                             EnumName{CollectiveKind::kBroadcast, "broadcast"},
                                             EnumName{CollectiveKind::kAllGather, "all_gather"},
                                             EnumName{CollectiveKind::kReduceScatter, "reduce_scatter"},
                                             EnumName{CollectiveKind::kAllToAll, "all_to_all"},
                                             EnumName{CollectiveKind::kShift, "shift"}};

/// What memory is held for.
enum class MemoryCategory : std::uint8_t {
  kParameters,
  kGradients,
  kOptimizerState,
  kActivations,
  kCommunication,
};
struct MemoryCategoryRow {
  MemoryCategory value;
  const char* name;   ///< key in results
  const char* label;  ///< in figures
};
inline constexpr std::array kMemoryCategories{
    MemoryCategoryRow{MemoryCategory::kParameters, "parameters", "parameters"},
    MemoryCategoryRow{MemoryCategory::kGradients, "gradients", "gradients"},
    MemoryCategoryRow{MemoryCategory::kOptimizerState, "optimizer_state", "optimizer state"},
    MemoryCategoryRow{MemoryCategory::kActivations, "activations", "activations"},
    MemoryCategoryRow{MemoryCategory::kCommunication, "communication_buffers", "communication buffers"}};

static_assert(is_in_order(kStreams) && is_in_order(kSpanKinds) && is_in_order(kPhases) &&
              is_in_order(kCollectiveKinds) && is_in_order(kMemoryCategories));

constexpr const char* to_text(Stream stream) { return row_of(kStreams, stream).name; }
constexpr const char* to_text(SpanKind kind) { return row_of(kSpanKinds, kind).name; }
constexpr const char* to_text(Phase phase) { return row_of(kPhases, phase).name; }
constexpr const char* to_text(CollectiveKind kind) { return row_of(kCollectiveKinds, kind).name; }
constexpr const char* to_text(MemoryCategory category) { return row_of(kMemoryCategories, category).name; }

/// Bytes by category.
using MemoryBytes = EnumArray<kMemoryCategories, double>;
inline double total(const MemoryBytes& bytes) {
  double sum = 0.0;
  for (const double each : bytes) sum += each;
  return sum;
}

}  // namespace stepcast
