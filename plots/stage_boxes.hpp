#pragma once

#include <cstdint>
#include <vector>

#include "records/result.hpp"

/// What the stages of a pipeline did, by micro-batch, as Gantt charts of schedules show it.
namespace stepcast {

enum class StageWork : std::uint8_t {
  kForward,
  kBackward,
  kBackwardWeights,  ///< the second half, where a backward is in two
  kRecompute,
  kCommunication,
  kUpdate,
  kInput,
  kWait
};
StageWork work_of(const Span& span);

/// One action of one rank: all its segments' operations in a row, or messages without a gap.
struct StageBox {
  int rank = 0;
  StageWork work = StageWork::kForward;
  int micro_batch = -1;  ///< -1 of what belongs to no micro-batch, and of communication
  double start_s = 0.0;
  double end_s = 0.0;
};

/// Whether a Result is of a pipeline: it has operations of micro-batches, and messages of micro-batches
/// between ranks or the strategy's name.
bool passes_micro_batches(const Result& result);

/// Rank by rank, computation before communication, each in the order of time. Waiting is no box. Neither
/// boxes of computation nor boxes of communication overlap on a rank: an operation inside another one (a copy
/// inside a backward) belongs to that, and messages that overlap are one box.
std::vector<StageBox> stage_boxes(const Result& result);

}  // namespace stepcast
