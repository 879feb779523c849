#pragma once

#include <string>
#include <utility>
#include <vector>

#include "models/model.hpp"
#include "schedule/schedule.hpp"

/// Stages of a model, and order of the work of a stage.
namespace stepcast {

/// Indices of the segments that a split counts: the repeated ones, or all if the model repeats none.
std::vector<int> blocks_of(const Model& model);

/// Blocks of each part: `6-2-2-2`, or with runs `17x2-1`, 17 parts of 2 blocks and one of 1.
/// \throws UsageError for anything else
std::vector<int> split_counts(const std::string& split);

/// Blocks of each part, as equal as can be, the first ones larger.
std::vector<int> even_counts(int blocks, int parts);
/// Inverse of split_counts(); with runs above eight parts.
std::string split_text(const std::vector<int>& counts);

/// Cuts a model into `parts` consecutive parts; returns the segments of each.
///
///     3-3-3-3, 4x3    blocks per part; they must add up to those of the model
///     even            as equal as can be, the first ones larger
///     ratio:2-1-1     shares, rounded so that every boundary is as close as can be
///     balanced        the cut with the shortest longest part, by measured time (`segment_times`)
///
/// Blocks are the model's repeated segments. What comes before them (an embedding) belongs to the first part,
/// what comes after (a head) to the last. A part with such segments may have no block (`0-6-6-0`). A model
/// that repeats nothing counts every segment as a block. `balanced` weighs all segments.
///
/// \param segment_times by segment, for `balanced`; empty elsewhere
/// \throws UsageError for a split that does not add up (it names the sum, the model's count and what would
/// fit), for another number of parts, and for parts without anything
std::vector<std::vector<int>> split_model(const Model& model, const std::string& split, int parts,
                                          const std::vector<double>& segment_times);

/// Blocks of each part: `3-3-3-3`.
std::string split_text(const Model& model, const std::vector<std::vector<int>>& parts);

/// One micro-batch through one chunk of the model: forward, backward, or one of the halves of a backward.
struct PipelineAction {
  Phase phase = Phase::kForward;
  int chunk = 0;  ///< of `ranks * virtual_stages`; chunk c is on rank c % ranks
  int micro_batch = 0;
  bool operator==(const PipelineAction&) const = default;
};

struct PipelineShape {
  std::string schedule = "1f1b";
  int ranks = 1;
  int micro_batches = 1;
  int virtual_stages = 1;
};

/// Work of one rank of a pipeline of p ranks with m micro-batches, in order.
///
/// - `gpipe`: all forwards 0 ... m-1, then all backwards m-1 ... 0. Huang et al., 2019; torch's Pipe.
/// - `1f1b`: rank r runs min(m, p - r) forwards, then alternates backward and forward, then the remaining
///   backwards. PipeDream-flush: Narayanan et al., ICML 2021.
/// - `interleaved`: v chunks per rank. Forwards come in groups of g = m / max(1, m / p) micro-batches, chunk
///   after chunk; (v - 1) g + 2 (p - 1 - r) of them before the first pair of forward and backward. Backwards
///   in the same groups, last chunk first. Narayanan et al., SC 2021; torch.distributed.pipelining.
/// - `zb-h1`: backwards in two halves, I of the input and W of the weights. Rank r runs min(m, p - 1 - r)
///   forwards, then alternates forward and I, then the remaining I's. The W of a micro-batch comes r I's
///   after its own I, so that W's fill the bubbles of 1F1B. ZB-H1 of Qi et al., "Zero Bubble Pipeline
///   Parallelism", 2023; ScheduleInterleavedZeroBubble of torch.distributed.pipelining, one stage per rank.
///
/// Makespan with F and B = I + W per rank and micro-batch, without communication: m (F + B) + (p - 1)(F + B)
/// for `gpipe` and `1f1b`, m (F + B) + (p - 1)(F + B) / v for `interleaved`, m (F + B) + (p - 1)(F + I - W)
/// for `zb-h1` with m >= p and W <= F, I. Peak live micro-batches on rank r: m, min(m, p - r), min(m v, (v -
/// 1) p + 2 (p - 1 - r) + 1) chunks of size 1/v, and min(m, p).
///
/// \pre the schedule is one of these
/// \throws UsageError for `interleaved` on one rank or with one virtual stage, or with m not a multiple of
/// max(1, m / p); for virtual stages with another schedule
std::vector<PipelineAction> pipeline_order(const PipelineShape& shape, int rank, bool forward_only);

}  // namespace stepcast
