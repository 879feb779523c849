#pragma once

#include <optional>
#include <string>

#include "core/units.hpp"
#include "models/model.hpp"
#include "records/phase_costs.hpp"
#include "schedule/schedule.hpp"

/// Phase costs of steps without a trace, of which a few sums are known: the forward, the host time, ...
namespace stepcast {

/// Known times of one rank's phases in a step of one micro-batch. Unset phases keep their estimate, or 0 s.
struct PhaseTimes {
  std::optional<Seconds> forward, backward, optimizer;
  std::optional<Seconds> input;  ///< before the forward, on one core
  std::optional<Seconds> host;   ///< that no operation accounts for, on one core
  Seconds stage{0};  ///< additional time of a pipeline's stage per micro-batch, whatever its layers

  bool operator==(const PhaseTimes&) const = default;
  [[nodiscard]] bool empty() const { return *this == PhaseTimes{}; }
};

/// Parses `forward=120ms,backward=130ms,host=2ms`. `compute` is forward plus backward: a third is forward,
/// since the backward has twice its flop. \throws InputError that lists the known names, or for a time below
/// 0
PhaseTimes parse_phase_times(const std::string& text);
std::string to_text(const PhaseTimes& times);

/// Costs of 0 s except for shares: of a segment's forward and backward its flop, of its optimizer its bytes.
/// `apply` turns them into times. Gradients are ready at the end of their segment's backward.
PhaseCosts flop_shares(const Model& model, int samples);

/// Scales every known phase so that its segments add up to the known time, which contains launches.
/// \param shares the costs are shares, so that unknown phases take 0 s
void apply(const PhaseTimes& times, PhaseCosts& costs, bool shares);

/// Adds a stage's additional time to the segment that opens it, a third to the forward.
void add_stage_times(Seconds stage, const Schedule& schedule, PhaseCosts& costs);

/// Moves gradients from what programs hold all the time to what operations allocate: zero_grad() frees them
/// (set_to_none, the default since PyTorch 2.0), the first backward of a segment allocates its part, the end
/// of the program frees all. Of a tied parameter without shards every backward makes two, and their sum.
void free_gradients(Schedule& schedule, const Model& model);

}  // namespace stepcast
