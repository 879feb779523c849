#pragma once

#include <cstdint>
#include <vector>

#include "records/result.hpp"

/// Actions of pipeline stages by micro-batch, for Gantt charts.
namespace stepcast {

enum class StageWork : std::uint8_t {
  kForward,
  kBackward,
  kBackwardWeights,  ///< the second half of a backward that is split
  kRecompute,
  kCommunication,
  kUpdate,
  kInput,
  kWait
};
StageWork work_of(const Span& span);

/// One action of one rank: consecutive operations of all its segments, or messages without a gap.
struct StageBox {
  int rank = 0;
  StageWork work = StageWork::kForward;
  int micro_batch = -1;  ///< -1: belongs to no micro-batch, or communication
  double start_s = 0.0, end_s = 0.0;
};

/// Whether a Result is of a pipeline: it has operations of micro-batches, and either messages of
/// micro-batches between ranks or the strategy's name.
bool passes_micro_batches(const Result& result);

/// Boxes rank by rank, computation before communication, each sorted by time. Waiting has no box. Boxes of
/// computation do not overlap on a rank, nor do boxes of communication: an operation inside another one (a
/// copy inside a backward) belongs to that, and messages that overlap are one box.
std::vector<StageBox> stage_boxes(const Result& result);

}  // namespace stepcast
