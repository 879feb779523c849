#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/json.hpp"
#include "core/units.hpp"
#include "records/machine_state.hpp"
#include "records/run_context.hpp"

/// A Trace: costs of one step of one model on one device, measured on one rank without communication.
namespace stepcast {

struct Model;

inline constexpr const char* kTraceSchema = "stepcast.trace/3";

/// Samples of one segment. Index k of every vector of a TraceEntry belongs to the same step, so that a replay
/// can resample whole steps and keep the correlation between segments.
struct SegmentTrace {
  std::string name;
  std::vector<double> forward_s, backward_s;
  /// By parameter of the segment, in gradient-ready order: part of the segment's backward time that has
  /// passed when its gradient is accumulated, in [0, 1]; median over the steps.
  std::vector<double> grad_ready_fraction;
  std::vector<double> zero_grad_s;  ///< of its parameters
  std::vector<double> optimizer_s;  ///< of its parameters
  double saved_bytes = 0.0;         ///< live bytes that its forward leaves for the backward, as observed
  // Most live bytes above those at the start of the phase, as observed.
  double forward_peak_bytes = 0.0, backward_peak_bytes = 0.0, optimizer_peak_bytes = 0.0;
  /// The same for the halves of a split backward, input first; empty: not observed, or the first segment.
  std::vector<double> half_peak_bytes{};
  // Launch overhead of these phases on a GPU; empty if the CPU computes.
  std::vector<double> forward_issue_s, backward_issue_s, zero_grad_issue_s, optimizer_issue_s;
};

/// What precedes a measured step. A thread that waited for another one finds the caches and branch predictors
/// of its core cold: a small model's step takes up to half as long again. A micro-batch that follows another
/// one finds weights in the caches and memory in the process, which the optimizer evicts and frees.
enum class StepContext : std::uint8_t {
  kContinuous,    ///< the step before: as in training on one rank
  kWaiting,       ///< a wait of 200 us for another thread before the optimizer, not counted: as for gradients
  kAccumulating,  ///< forward and backward of another micro-batch, not counted: as in accumulation
};

/// All samples for one (batch, threads, pace): a table with one row per measured step, warm-up excluded.
///
/// On a GPU the phases' times are the device's, from events around them; the launch thread has launched each
/// phase before the device begins it. The members `..._issue_s` are the launch overhead. step_s and host_s
/// belong to another step, which runs right after as in training: the phases do not add up to it. host_s is
/// the time between the end of the last phase on the device and that of the step.
struct TraceEntry {
  int batch = 0, threads = 1;
  StepContext pace = StepContext::kContinuous;
  std::vector<int> launch;  ///< launch of `measure` that step k belongs to
  std::vector<double> input_s;
  std::vector<double> loss_s;         ///< loss forward and backward
  std::vector<double> host_s;         ///< time of the segmented step that no phase accounts for
  std::vector<double> step_s;         ///< whole segmented step
  std::vector<double> native_step_s;  ///< whole-graph steps, interleaved; empty for kWaiting
  double loss_peak_bytes = 0.0;       ///< most live bytes above those before the loss
  /// Peak of live bytes of a step: parameters, gradients, optimizer state, activations; 0: unknown.
  double peak_bytes = 0.0;
  /// In the model's order: all, or those of one pipeline stage that was measured alone. Then input_s is of
  /// what the stage receives, and loss_s means nothing except in the last stage.
  std::vector<SegmentTrace> segments;
  int first_segment = 0;  ///< index of the first one in the model
  /// By collective of the model: part of its phase's time that has passed when it starts; it took no time
  /// here. Median over the steps.
  std::vector<double> exchange_fraction;
  MachineLog machine;              ///< by step; empty if not recorded, and between batch sizes
  bool with_interference = false;  ///< too few steps were without, so these are those with the least

  [[nodiscard]] std::size_t steps() const { return step_s.size(); }
  std::vector<double> input_issue_s, loss_issue_s;  ///< launch overhead on a GPU, as in SegmentTrace
  [[nodiscard]] int end_segment() const { return first_segment + static_cast<int>(segments.size()); }
  /// True for the same batch, threads and pace.
  [[nodiscard]] bool measured_like(const TraceEntry& other) const {
    return batch == other.batch && threads == other.threads && pace == other.pace;
  }

  /// Sum of a phase over the segments, step by step.
  [[nodiscard]] std::vector<double> sum(std::vector<double> SegmentTrace::*phase) const;
};
/// Members with a sample per step, of a step and of its segments.
inline constexpr std::array kStepSamples{
    &TraceEntry::input_s,       &TraceEntry::loss_s,        &TraceEntry::host_s,      &TraceEntry::step_s,
    &TraceEntry::native_step_s, &TraceEntry::input_issue_s, &TraceEntry::loss_issue_s};
inline constexpr std::array kSegmentSamples{
    &SegmentTrace::forward_s,         &SegmentTrace::backward_s,       &SegmentTrace::zero_grad_s,
    &SegmentTrace::optimizer_s,       &SegmentTrace::forward_issue_s,  &SegmentTrace::backward_issue_s,
    &SegmentTrace::zero_grad_issue_s, &SegmentTrace::optimizer_issue_s};

/// Collectives of one kind and size that a profile contains.
struct TracedCollective {
  std::string kind{};   ///< `all_reduce`
  std::string dtype{};  ///< as in the profile; "": unknown
  double bytes = 0.0;   ///< whole array, as in nccl-tests; 0: unknown
  int ranks = 0;        ///< 0: unknown
  double per_step = 0.0;
  /// Each from the latest rank's start to its end, as far as several ranks were profiled; else with the wait
  /// for the other ranks
  std::vector<double> time_s{};
};

struct Trace {
  RunContext context;
  std::vector<Ancestor> lineage;
  std::string model;  ///< full specification: `netflix-mlp:hidden=256`
  std::string device;
  std::string dtype = "float32";     ///< of GEMMs, as devices name it
  std::string precision = "fp32";    ///< see models/precision.hpp
  std::string recompute = "none";    ///< part of the backwards' times, see recomputing()
  std::vector<TraceEntry> entries;   ///< sorted by (threads, batch, pace, first segment)
  std::vector<TraceEntry> rejected;  ///< steps with interference; nothing is forecast from them
  /// Times contain what ranks that share layers exchange, which a replay then does not add.
  bool has_exchanges = false;
  double workspace_bytes = 0.0;  ///< that libraries of a GPU hold for GEMMs beside a step's tensors
  /// Lines of a model file, if `model` is not the name of one: of an imported profile.
  std::vector<std::string> described{};
  std::vector<TracedCollective> collectives{};  ///< of an imported profile
  int micro_batches = 1;                        ///< of an imported profile's step
  std::map<std::string, double> profile{};      ///< what `import` reported of a profile's step, in seconds

  /// First key with a value that cannot have been measured; "" if there is none.
  [[nodiscard]] std::string problem() const;
  /// Over the steps of all entries, without the rejected ones.
  [[nodiscard]] MachineSpeed machine_speed() const;
  [[nodiscard]] bool has(StepContext pace) const;
  /// Entry for `batch`, interpolated linearly, sample quantile by sample quantile, between the two nearest
  /// measured batch sizes with the same threads and pace. Without any entry of that pace the continuous ones
  /// are used. \throws InputError that names the measured batch sizes if `batch` lies outside and
  /// `extrapolate` is not true, or if no entry has these threads \param extrapolate empty: the command lacks
  /// --extrapolate, and the error does not suggest it
  [[nodiscard]] TraceEntry at(int batch, int threads, std::optional<bool> extrapolate,
                              StepContext pace = StepContext::kContinuous) const;
};

/// The trace with every entry of all segments. Stages of a pipeline that were measured one at a time are
/// joined: step k is the k-th of each, with the input time of the first stage, and loss and host time of the
/// last. It takes the sum of its phases and that host time. There are as many steps as the stage with the
/// fewest has, and none of the whole graph. Left out: effects of neighbouring stages on each other (shared
/// caches, power, memory). \throws InputError that names missing segments or those of another model; for the
/// trace of another model, or with other parts recomputed
Trace of_whole_model(const Trace& trace, const Model& model);

/// Joins the traces of several launches, in order. Samples of equal batch, threads, context and segments are
/// joined and keep the number of their launch; fractions are averaged. Entries are sorted by (threads, batch,
/// context, first segment). \pre parts is not empty; all are of one model; segments of two parts are equal or
/// disjoint
Trace merge_launches(const std::vector<Trace>& parts);

/// Steps of an entry that are marked, or those that are not.
TraceEntry marked(const TraceEntry& entry, const std::vector<char>& marks, bool wanted = true);

STEPCAST_JSON(StepContext)
STEPCAST_JSON(Trace)

Trace load_trace(const std::string& path);
/// The model that a trace names or describes.
Model model_of(const Trace& trace, const std::string& path);
/// of_whole_model() of a file, which errors name.
Trace load_trace_of(const Model& model, const std::string& path);

}  // namespace stepcast
