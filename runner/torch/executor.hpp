#pragma once

#include <cstddef>
#include <functional>

#include "runner/engine/torch_engine.hpp"

/// Executes a Schedule for real: LibTorch computes, a Backend communicates.
namespace stepcast {

/// Runs warm-up and measured steps of this rank's program; all ranks of the job call it.
///
/// How operations are executed is said in program_runner.hpp.
/// Steps follow each other without a barrier, except for one before the first measured step.
///
/// Returns the Result without context, lineage and configuration, complete at rank 0: the step times of all
/// ranks, the spans of the step whose slowest rank is the median, the median over the steps of every part of
/// the breakdown, the peak memory of the measured steps, the loss averaged over the ranks that compute it,
/// and the note `buckets` where there are any (bucket_layout.hpp). Other ranks receive the step times alone.
/// Spans of a step count from its start at rank 0; clocks of other hosts are compared with rank 0's before
/// the first and after the last step (clock_alignment.hpp), and the Result's note `clocks` tells how well
/// they are known. \param final_state filled in where it is not null \throws CapabilityError for operations
/// that are not executed yet; RunError that names a rank that was lost
Result run_schedule(const Model& model, const Schedule& schedule, RankSession& session,
                    const RunOptions& options, FinalState* final_state = nullptr);

/// to[i] = scale * from[i] by the code that copies gradients into buckets: resolved now, done when called.
/// \pre both arrays live until then
std::function<void()> prepare_scaled_copy(float* to, float* from, float scale, std::size_t count);

}  // namespace stepcast
