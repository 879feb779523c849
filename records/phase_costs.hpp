#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "models/model.hpp"
#include "records/trace.hpp"
#include "schedule/schedule.hpp"

/// Costs of the phases of a training step on one rank that has its device to itself.
namespace stepcast {

/// Cost of one phase, in seconds.
struct PhaseCost {
  std::vector<double> samples_s{};  ///< device time of each measured step; empty: `device_s` in every step
  double device_s = 0.0;            ///< median device time
  double launch_s = 0.0;  ///< launch overhead; 0 if the phase computes on the thread that launches it

  /// \param row index of a measured step; -1: the median
  [[nodiscard]] double at(int row) const { return row < 0 || samples_s.empty() ? device_s : samples_s[row]; }
};

/// Costs and observed bytes of one segment, for one micro-batch.
struct SegmentCosts {
  PhaseCost forward, backward, zero_grad, optimizer;
  /// Part of the backward that computes gradients of weights: of its device time, and of its launch overhead.
  double weight_fraction = 0.0, weight_launch_fraction = 0.0;
  /// Part of the forward that a recomputation of what is needed runs (Compute::needed), alike.
  double needed_fraction = 1.0, needed_launch_fraction = 1.0;
  double saved_bytes = 0.0;  ///< live bytes that the forward leaves for the backward
  /// Most live bytes above those at the start of the phase.
  double forward_peak_bytes = 0.0, backward_peak_bytes = 0.0, optimizer_peak_bytes = 0.0;
  /// The same for the halves of a split backward; negative: not observed, that of the whole counts.
  double input_half_peak_bytes = -1.0, weight_half_peak_bytes = -1.0;

  [[nodiscard]] const PhaseCost& operator[](Phase phase) const;
};

/// How much of a collective inside a layer is hidden by computing beside it: `gain` times the shorter of
/// `hidden_s`, the time of the GEMMs beside it, and `most` times the collective's own time.
struct Overlap {
  double hidden_s = 0.0, most = 1.0, gain = 1.0;
  bool paired = false;  ///< the other micro-batch of a pair computes meanwhile
  [[nodiscard]] double credit_s(double waited_s) const { return gain * std::min(hidden_s, most * waited_s); }
};

/// Time of a flexible dispatcher in place of NCCL's all-to-all: what does not depend on bytes, and the rate
/// at which bytes leave the rank.
struct DispatchCost {
  double latency_s = 0.0;
  BytesPerSecond sent{};  ///< 0 B/s: not known, as NCCL's
};

/// Costs of all phases of a model. Four sources fill it: a trace or a layer profile (`traced_costs`), a
/// device estimate (`estimated_costs`), declared phase times (`flop_shares` and `apply`), and times that the
/// model declares (`declared_costs`).
///
/// An operation takes the time of its segment's phase. An FSDP unit takes the sum over its segments, and its
/// optimizer 1/n of that, since its shard has 1/n of the parameters. The weight half of a split backward
/// takes `weight_fraction` of the whole, the input half the rest. Transfers between memories or ranks take no
/// time here.
struct PhaseCosts {
  std::vector<SegmentCosts> segments;
  PhaseCost input, loss;
  PhaseCost host;                          ///< host time of a step that no phase accounts for
  PhaseCost all_zero_grad, all_optimizer;  ///< of all segments together
  double loss_peak_bytes = 0.0;            ///< most live bytes above those before the loss
  std::vector<int> rows;  ///< measured steps in ascending order of step time; empty: times are declared
  /// By parameter: part of its segment's backward that has passed when its gradient is ready.
  std::vector<double> ready_fraction;
  std::vector<double> exchange_fraction;  ///< by collective of the model: part of its phase that has passed
  std::vector<Overlap> overlaps;          ///< by collective of the model; empty: nothing is hidden
  std::vector<DispatchCost> dispatches;   ///< by collective of the model; empty: none is flexible
  bool asynchronous = false;              ///< a launch thread runs ahead of the device
  /// Costs of micro-batches that follow another one in their step; null: the same.
  std::shared_ptr<const PhaseCosts> following{};

  /// Costs of 0 s with the model's weight fractions.
  explicit PhaseCosts(const Model& model);

  /// Device time of an operation, in seconds; 0 for what does not compute.
  /// \param quantile of the measured steps by step time, from 0 to 1; negative: the median of each phase
  /// \param follows the operation's phase and segment ran before in this step, for another micro-batch
  [[nodiscard]] double seconds(const Schedule& schedule, const Op& op, double quantile, bool follows) const;
  [[nodiscard]] double launch_s(const Schedule& schedule, const Op& op) const;
  [[nodiscard]] double rest_of_step_s(double quantile) const { return host.at(row(quantile)); }
  /// Part of its parent operation's time after which a hook runs: where the gradient is ready, or the
  /// collective starts; 1 if unknown.
  [[nodiscard]] double hook_fraction(const Op& hook) const {
    return hook.exchange >= 0 ? exchange_fraction[hook.exchange] : ready_fraction[hook.ready_tensor];
  }
  /// Part of the time that a hook waited for a collective in which the parent has computed. \param paired two
  /// micro-batches compute by turns
  [[nodiscard]] double credit_s(const Op& hook, double waited_s, bool paired) const {
    if (overlaps.empty() || hook.exchange < 0) return 0.0;
    const Overlap& one = overlaps[hook.exchange];
    return one.paired && !paired ? 0.0 : one.credit_s(waited_s);
  }
  /// Most bytes above what the operation finds and leaves, while it runs. \param units of its schedule
  [[nodiscard]] double workspace_bytes(const std::vector<FsdpUnit>& units, const Op& op) const;
  /// Bytes that a change adds to memory; negative: that it frees.
  [[nodiscard]] double bytes(const MemoryChange& change) const;
  /// Median forward plus backward time of every segment, in seconds.
  [[nodiscard]] std::vector<double> segment_times() const;
  /// Sets `all_zero_grad` and `all_optimizer` to the sums over the segments, without samples.
  void sum_segments();
  /// True if measured steps differ, so that a replay can resample them.
  [[nodiscard]] bool varies() const { return rows.size() > 1; }

 private:
  [[nodiscard]] int row(double quantile) const;
  [[nodiscard]] double total(const Schedule& schedule, const Op& op, double SegmentCosts::*weights,
                             double SegmentCosts::*needed, const auto& value) const;
};

/// By operation of a program, 1 if one of the same phase and segment runs before it in a step.
std::vector<char> followers(const Program& program);

/// Costs from an entry of a trace. \param accumulating entry of micro-batches that follow another one; may be
/// null
/// \throws InputError if the trace has another number of segments than the model
PhaseCosts traced_costs(const Model& model, const TraceEntry& entry,
                        const TraceEntry* accumulating = nullptr);

/// Costs that a model with fixed times declares. \param samples of a micro-batch
PhaseCosts declared_costs(const Model& model, double samples);

}  // namespace stepcast
