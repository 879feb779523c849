#pragma once

#include <vector>

#include "runner/engine/torch_engine.hpp"

/// Measures a Trace: what one step of a model costs on this machine, phase by phase, on one rank alone.
namespace stepcast {

/// Two or three entries per batch size, one per Pace, in float32, without context and lineage, which the
/// command adds.
///
/// Batch sizes take turns in rounds of a few steps, so that a slow spell of a shared machine does not fall on
/// one of them; a step that is not kept follows each turn. Within a round segmented steps (each segment its
/// own autograd graph, as Schedules are executed) and native ones (the whole graph at once) alternate one by
/// one; steps that wait for another thread take a turn of their own. Saved bytes are observed in a pass of
/// their own, by an allocator that counts. Holds: input + zero_grad + forwards + loss + backwards + optimizer
/// + host = step, for each segmented step.
Trace measure_trace(const Model& model, const MeasureOptions& options);

/// One Trace of several launches, in order: samples of equal batch, threads and pace are joined and say which
/// launch they are from; fractions are averaged. Entries are sorted by (threads, batch, pace). \pre parts not
/// empty, of one model
Trace merge_launches(const std::vector<Trace>& parts);

}  // namespace stepcast
