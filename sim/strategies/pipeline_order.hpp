#pragma once

#include <string>
#include <vector>

namespace stepcast {

/// One micro-batch through one chunk of the model, forward or backward.
struct PipelineAction {
  bool forward = true;
  int chunk = 0;  ///< of all `ranks * virtual_stages`; chunk c lives on rank c % ranks
  int micro_batch = 0;
  bool operator==(const PipelineAction&) const = default;
};

struct PipelineShape {
  std::string schedule = "1f1b";
  int ranks = 1;
  int micro_batches = 1;
  int virtual_stages = 1;
};

/// What one rank of a pipeline computes, in order.
///
/// - `gpipe`: all forwards 0 ... m-1, then all backwards m-1 ... 0. Huang et al., 2019; torch's Pipe.
/// - `1f1b`: rank r runs min(m, p - r) forwards, then alternates backward and forward, then the backwards
/// left.
///   PipeDream-flush: Narayanan et al., ICML 2021.
/// - `interleaved`: v chunks per rank. Forwards come in groups of g = m / max(1, m / p) micro-batches, chunk
/// after
///   chunk; (v - 1) g + 2 (p - 1 - r) of them before the first pair of forward and backward. Backwards in the
///   same groups, last chunk first. Narayanan et al., SC 2021; torch.distributed.pipelining.
///
/// Makespan with F and B per rank and micro-batch, no communication: m (F + B) + (p - 1)(F + B) for `gpipe`
/// and `1f1b`, m (F + B) + (p - 1)(F + B) / v for `interleaved`; peak live micro-batches on rank r: m, min(m,
/// p - r), and min(m v, (v - 1) p + 2 (p - 1 - r) + 1) chunks of size 1/v.
///
/// \pre the schedule is one of these
/// \throws UsageError for `interleaved` on one rank or with one virtual stage, or
/// with m not a multiple of max(1, m / p); for virtual stages with another schedule
std::vector<PipelineAction> pipeline_order(const PipelineShape& shape, int rank, bool forward_only);

}  // namespace stepcast
