#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/units.hpp"
#include "records/machine_state.hpp"
#include "records/run_context.hpp"

/// A Trace: what one step of one model costs on one device, measured on one rank without communication.
namespace stepcast {

struct Model;

inline constexpr const char* kTraceSchema = "stepcast.trace/2";

/// Samples of one segment. Index k of every vector of a TraceEntry belongs to the same step, so that a replay
/// can resample whole steps and keep the correlation between segments.
struct SegmentTrace {
  std::string name;
  std::vector<double> forward_s;
  std::vector<double> backward_s;
  /// For each parameter of the segment in gradient-ready order: the part of the segment's backward time that
  /// has passed when its gradient is accumulated, in [0, 1]; median over the steps.
  std::vector<double> grad_ready_fraction;
  std::vector<double> zero_grad_s;  ///< of its parameters
  std::vector<double> optimizer_s;  ///< of its parameters
  /// The part of the backward's time that gradients of weights take, which a pipeline may put off; nothing where only the
  /// whole was measured.
  std::optional<double> weight_part{};
  double saved_bytes = 0.0;  ///< live bytes that its forward leaves behind for the backward, as observed
  // Most live bytes above those at the start of the phase, as observed.
  double forward_peak_bytes = 0.0;
  double backward_peak_bytes = 0.0;
  double optimizer_peak_bytes = 0.0;
  // What a host that runs ahead of its device needs to issue these; empty where the host computes.
  std::vector<double> forward_issue_s, backward_issue_s, zero_grad_issue_s, optimizer_issue_s;
};

/// What a measured step comes after. A thread that waited for another finds the core's caches and branch
/// predictors cold; a small model's step takes up to half as long again. A micro-batch that follows another
/// one finds weights in the caches and memory in the process, which the optimizer had pushed out and given
/// back.
enum class StepContext : std::uint8_t {
  kContinuous,  ///< the step before: as in training on one rank
  kWaiting,  ///< with a wait of 200 us for another thread before the optimizer, not counted: as in training
             ///< that waits for gradients
  kAccumulating,  ///< forward and backward of another micro-batch, not counted: as in training that
                  ///< accumulates
};

/// All samples for one (batch, threads, pace). Vectors have one element per measured step, warm-up excluded.
///
/// On a GPU the times of phases are the device's, by events around them, while the host has issued each phase before the
/// device begins it: what it computes, without waiting for its host. The members `..._issue_s` say what the host
/// took. step_s and host_s are then of another step, which runs as training does, right after: the phases do not add up to
/// it. host_s is what passes between the end of the last phase on the device and that of the step.
struct TraceEntry {
  int batch = 0;
  int threads = 1;
  StepContext pace = StepContext::kContinuous;
  std::vector<int> launch;  ///< which launch of `measure` step k belongs to
  std::vector<double> input_s;
  std::vector<double> loss_s;         ///< loss forward and backward
  std::vector<double> host_s;         ///< step time of the segmented step that no phase accounts for
  std::vector<double> step_s;         ///< whole segmented step
  std::vector<double> native_step_s;  ///< whole-graph steps, interleaved; none where the pace is waiting
  double loss_peak_bytes = 0.0;       ///< most live bytes above those before the loss
  /// Most live bytes of a step: parameters, gradients, optimizer's state, activations; 0: not known.
  double peak_bytes = 0.0;
  /// In the model's order: all, or those of one stage of a pipeline, which was measured alone. Of such an entry input_s is
  /// that of what the stage receives, and loss_s of all but the last is nothing's.
  std::vector<SegmentTrace> segments;
  int first_segment = 0;  ///< the first one's place in the model
  /// By exchange of the model: the part of its phase's time that has passed when the ranks that share the model put
  /// their parts together, which took no time here; median over the steps.
  std::vector<double> exchange_fraction;
  MachineLog machine;      ///< beside each step; empty in files of older versions, and between batch sizes
  bool disturbed = false;  ///< too few steps were not, so that these are the least disturbed ones

  [[nodiscard]] std::size_t steps() const { return step_s.size(); }
  std::vector<double> input_issue_s, loss_issue_s;  ///< of a host that runs ahead, as in SegmentTrace
  [[nodiscard]] int end_segment() const { return first_segment + static_cast<int>(segments.size()); }
  /// With the same batch, threads and pace.
  [[nodiscard]] bool measured_like(const TraceEntry& other) const {
    return batch == other.batch && threads == other.threads && pace == other.pace;
  }

  /// The same phases as its host issues them, without time for the rest of the step; nothing where the host computes.
  [[nodiscard]] std::optional<TraceEntry> issue() const;
  /// Of all segments, step by step.
  [[nodiscard]] std::vector<double> zero_grad_s() const { return sum(&SegmentTrace::zero_grad_s); }
  [[nodiscard]] std::vector<double> optimizer_s() const { return sum(&SegmentTrace::optimizer_s); }
  /// Forward plus backward, by segment.
  [[nodiscard]] std::vector<double> median_segment_times() const;

 private:
  [[nodiscard]] std::vector<double> sum(std::vector<double> SegmentTrace::*phase) const;
};

struct Trace {
  RunContext context;
  std::vector<Ancestor> lineage;
  std::string model;  ///< full specification: `netflix-mlp:hidden=256`
  std::string device;
  std::string dtype = "float32";      ///< of products, as devices call it
  std::string precision = "fp32";     ///< see models/precision.hpp
  std::string recompute = "none";     ///< in the times of backwards, see recomputing()
  std::vector<TraceEntry> entries;    ///< sorted by (threads, batch, pace, first segment)
  std::vector<TraceEntry> set_aside;  ///< disturbed steps of these; nothing is forecast from them
  /// Times contain what ranks that share layers exchange, which a replay then does not add.
  bool has_exchanges = false;

  /// The first key whose value cannot have been measured; "" where all can.
  [[nodiscard]] std::string problem() const;
  /// Over the steps of all entries, not those set aside.
  [[nodiscard]] MachineSpeed machine_speed() const;
  [[nodiscard]] bool has(StepContext pace) const;
  /// The entry for `batch`, interpolated linearly, sample quantile by sample quantile, between the two
  /// nearest measured batch sizes with the same threads and pace. A trace without any entry of that pace
  /// gives its continuous ones. \throws InputError that names the measured batch
  /// sizes when `batch` lies outside them and `extrapolate` is false, or when no entry has these threads.
  [[nodiscard]] TraceEntry at(int batch, int threads, bool extrapolate,
                              StepContext pace = StepContext::kContinuous) const;
};

/// The same trace with every entry of all segments. Those of the stages of a pipeline, measured one at a time, are joined:
/// step k is the k-th of each, the input's time the first one's, the loss's and the host's rest the last one's, and the step as
/// long as its phases and that rest. As many steps as the stage with the fewest has; none of the whole graph.
/// What a stage's neighbours do to it (shared caches, power, and memory) is in none of them.
/// \throws InputError that names the segments that are missing, those of another model, and for the trace of another model or
/// of other parts that run again
Trace of_whole_model(const Trace& trace, const Model& model);

/// The steps of an entry that are marked, or those that are not.
TraceEntry marked(const TraceEntry& entry, const std::vector<char>& marks, bool wanted = true);

void to_json(nlohmann::json& json, StepContext pace);
void from_json(const nlohmann::json& json, StepContext& pace);
void to_json(nlohmann::json& json, const Trace& trace);
void from_json(const nlohmann::json& json, Trace& trace);

Trace load_trace(const std::string& path);
/// of_whole_model() of a file, which errors name.
Trace load_trace_of(const Model& model, const std::string& path);

}  // namespace stepcast
