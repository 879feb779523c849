#pragma once

#include <optional>
#include <string>

#include "core/units.hpp"
#include "models/model.hpp"
#include "records/trace.hpp"
#include "schedule/schedule.hpp"

/// Traces of steps that nobody traced, of which only a few sums are known: so long the forward, so long the host.
namespace stepcast {

/// What one rank's phases take in one step of one micro-batch. What is not known keeps what an estimate says of it, or 0 s.
struct PhaseTimes {
  std::optional<Seconds> forward, backward, optimizer;
  std::optional<Seconds> input;  ///< before the forward, on one core
  std::optional<Seconds> host;   ///< what no operation accounts for, on one core
  Seconds stage{0};  ///< that a stage of a pipeline takes longer per micro-batch, whatever its layers

  [[nodiscard]] bool empty() const {
    return !forward && !backward && !optimizer && !input && !host && stage == Seconds(0);
  }
};

/// `forward=120ms,backward=130ms,host=2ms`; `compute` is both, a third of it forward (2 flop of the backward for one of
/// the forward). \throws InputError that lists the known names, or for a time below 0
PhaseTimes parse_phase_times(const std::string& text);
std::string to_text(const PhaseTimes& times);

/// A TraceEntry in which a segment's forward and backward are as long as they have flop, and its optimizer as it has
/// bytes: shares, which `apply` turns into times. Gradients are ready at the end of their segment's backward.
TraceEntry shares_by_flop(const Model& model, int samples, int threads);

/// Scales every phase that is known. Of an entry of shares those that are not known take no time.
/// Holds: the segments of a phase add up to its time.
void apply(const PhaseTimes& times, TraceEntry& entry);

/// Adds a stage's own time to the segment that opens it, a third to the forward.
void add_stage_times(Seconds stage, const Schedule& schedule, TraceEntry& entry);

/// Takes the gradients out of what the programs hold all the time: zero_grad() gives them up (set_to_none, the default
/// since PyTorch 2.0), the first backward of a segment takes its part of them, the end of the program gives them up.
void free_gradients(Schedule& schedule, const Model& model);

}  // namespace stepcast
