#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/json.hpp"
#include "core/statistics.hpp"
#include "models/model.hpp"
#include "records/machine_state.hpp"
#include "records/run_context.hpp"
#include "schedule/schedule.hpp"

/// A Result: the execution of a Schedule, in simulated time (predicted) or on real devices (measured). One
/// schema for both, with the same operation names, so that validation is a difference of two files.
namespace stepcast {

inline constexpr const char* kResultSchema = "stepcast.result/3";

enum class Origin : std::uint8_t { kMeasured, kPredicted };

/// One operation of one step of one rank, in seconds since the start of that step on rank 0. A hook's span
/// lies inside the span of its backward operation.
struct Span {
  int rank = 0;
  Stream stream = Stream::kCompute;
  SpanKind kind = SpanKind::kCompute;
  std::string name;
  double start_s = 0.0, end_s = 0.0;
  double bytes = 0.0;  ///< size of the message, copy or collective array; 0: nothing is moved
  int to = -1;         ///< destination rank of a message; -1: none
  int from = -1;       ///< source rank of a message; -1: none
  int tag = 0;         ///< equal at both ends of a message
  int step = -1;       ///< set only in Result::shown
};
/// Span of an operation of one rank.
Span span_of(int rank, const Op& op, double start_s, double end_s);
/// An operation's name without the micro-batch at its end, and the number of that: `forward/layer1` and 2 of
/// `forward/layer1/mb2`; the whole name and -1 without one.
std::pair<std::string, int> split_micro_batch(const std::string& name);

/// Where a step's time went on one rank. The exclusive parts sum to the step time:
///
///     compute + exposed_communication + input_and_host + optimizer_and_copies + idle = step
///
/// and exposed + overlapped = communication, the union of the comm spans. Time counts as the innermost
/// operation that runs on the compute, copy or host stream (a copy inside a backward is a copy).
/// Communication is exposed while no such operation runs, or while a forward or backward waits for a
/// collective of tensor, context or expert parallelism. Time without any operation is idle. Time after the
/// last span counts as host.
struct Breakdown {
  double compute_s = 0.0;
  double exposed_communication_s = 0.0;
  double overlapped_communication_s = 0.0;
  double input_and_host_s = 0.0;
  double optimizer_and_copies_s = 0.0;
  double idle_s = 0.0;
  [[nodiscard]] double step_s() const {
    return compute_s + exposed_communication_s + input_and_host_s + optimizer_and_copies_s + idle_s;
  }
};

/// Live bytes of one rank during a step. `at_peak_bytes` splits the peak by category: parameters, gradients,
/// optimizer_state (with the optimizer's workspace), activations (with other kernels' workspace) and
/// communication_buffers. Samples in host memory are not counted.
struct MemoryUse {
  int rank = 0;
  double peak_bytes = 0.0;
  std::map<std::string, double> at_peak_bytes;
  /// Since the start of that step on rank 0; empty if only the peak is known
  std::vector<double> time_s;
  std::vector<double> live_bytes;  ///< from the same entry of `time_s` on
  /// Bytes at the peak by term, `activations: saved for the backward`; of predictions; not in files.
  std::map<std::string, double> terms{};
  /// Peak of what the allocator reserves, and of the whole process; 0: unknown; not in files.
  double reserved_bytes = 0.0, process_bytes = 0.0;
  std::map<std::string, double> besides{};  ///< bytes of the process above the peak by term; not in files

  /// Memory that the rank takes of its device: the whole process, on CPUs what it allocates.
  [[nodiscard]] double needed_bytes() const { return process_bytes > 0.0 ? process_bytes : peak_bytes; }
};

/// The machine during the measured steps of a run. Entry i of `log` covers the steps [i k, (i + 1) k), with k
/// = `steps`, of the rank that lost most CPU time.
struct RunMachine {
  int steps = 0;  ///< 0: not recorded
  MachineLog log;
  /// Step time of the traced model on one rank right before the run, over the trace's; 0: unknown.
  double slowdown = 0.0;
  /// Step time without interference, by step (step_without_interference_s in runner/execute/rank_report.hpp);
  /// empty if it is unknown.
  std::vector<double> without_interference_s{};
};

/// Configuration of a run or prediction. Results of equal configurations are comparable.
struct Configuration {
  std::string model{};  ///< full specification
  std::string strategy{};
  int world_size = 1;
  int batch = 0;          ///< per rank; of a pipeline, per pipeline
  int data_parallel = 1;  ///< batches per step
  int micro_batches = 1, threads = 1;
  std::string backend = "gloo";
  std::string cluster{};  ///< name with settings: `star:hosts=8`; "" for a measured run on this machine
  std::string device{};   ///< target of a prediction for another device: `h100-sxm`; "": the measured one
  int steps = 0;
  /// Options of the strategy that apply, resolved.
  std::map<std::string, std::string, std::less<>> options{};
  std::string label{};  ///< text of `strategy` and `options`, see Schedule::label
  /// `real`, or `replayed`: ranks wait for the compute times of a trace.
  std::string compute = "real";
  /// Of a run: `schedule`, or `reference`: PyTorch's own parts instead of a Schedule.
  std::string engine = "schedule";

  /// Adds an option that is not the strategy's but makes another case, also to the label. "": not given.
  void add_option(const std::string& name, const std::string& value) {
    if (value.empty()) return;
    options[name] = value;
    label.append(", ").append(name).append(" ").append(value);
  }
};

/// `bert-base, pipeline, split 3-3-3-3, world size 4, batch 32 in 8 micro-batches, 1 thread per rank`; a
/// forecast for a device ends with it: `..., 1 thread per rank, on h100-sxm`
std::string describe(const Configuration& configuration);

/// The first field by which two configurations describe different training steps: `batch '1', not '2'`; ""
/// if none differs. Device, cluster, steps and warm-up are circumstances.
std::string difference(const Configuration& one, const Configuration& other);

/// Steps requested for a timeline, in seconds since the start of the first of them on rank 0.
struct ShownSteps {
  std::vector<Span> spans;
  std::vector<MemoryUse> memory;  ///< over time; empty if unknown
};

/// What a prediction records in addition to a run.
struct ForecastNotes {
  /// Step times of baselines that need no simulator: `ideal_scaling`, `alpha_beta`.
  std::map<std::string, double> baseline_step_time_s{};
  /// The machine while the inputs were measured: `measuring`, `calibrating`.
  std::map<std::string, MachineSpeed> input_speeds{};
  /// Over all ranks of a world of more than 64; empty: `breakdown` and `memory` are of all ranks. Entries:
  /// `bubble_fraction`, `stage_time_cv`, and of peak memory the mean less rank 0's,
  /// `memory_above_first_bytes`, and the standard deviation, `memory_deviation_bytes`.
  std::map<std::string, double> balance{};
  /// Options of `stepcast predict` that repeat this prediction; empty if another command made it.
  std::vector<std::string> request{};
  double operations = 0.0;                     ///< replayed, all ranks and steps; not in files
  std::shared_ptr<const Schedule> schedule{};  ///< not in files
};

struct Result {
  RunContext context;
  Origin origin = Origin::kMeasured;
  std::vector<Ancestor> lineage;
  Configuration configuration;
  std::vector<std::vector<double>> step_time_s;  ///< [rank][step], warm-up excluded
  std::vector<double> warmup_step_time_s;        ///< of rank 0
  std::vector<double> loss;                      ///< per step, measured runs only
  std::vector<Span> spans;                       ///< of one representative step
  std::vector<Breakdown> breakdown;              ///< per rank, median over steps
  std::vector<MemoryUse> memory;                 ///< of the ranks that `breakdown` is of
  double bytes_sent_per_rank = 0.0;              ///< largest over the ranks, one step
  std::map<std::string, std::string> notes;      ///< `collective_fidelity`: `message`, ...
  ShownSteps shown;                              ///< empty: the representative step; not in files
  RunMachine machine;                            ///< of measured runs
  ForecastNotes forecast;                        ///< of predictions

  /// First key whose value is impossible; "" if all are valid.
  [[nodiscard]] std::string problem() const;
  /// Spans of timelines: those of the requested steps, else of the representative one.
  [[nodiscard]] const std::vector<Span>& shown_spans() const {
    return shown.spans.empty() ? spans : shown.spans;
  }
  /// By step, of its slowest rank.
  [[nodiscard]] std::vector<double> slowest_steps_s() const;
  /// Median over the steps of the slowest rank's step time.
  [[nodiscard]] double median_step_time_s() const;
  /// Median step time without interference, or median_step_time_s() if that is unknown.
  [[nodiscard]] double step_time_without_interference_s() const;
  /// The machine over all measured steps of a run.
  [[nodiscard]] MachineSpeed machine_speed() const { return speed_of({&machine.log}, context.cpu_model); }
  /// Measured step time, normalised to a machine of speed `speed`:
  ///
  ///     median over the entries of `machine` (mean step of the slowest rank * (1 - lost_fraction))
  ///     * median probe / speed
  ///
  /// or, if known, step_time_without_interference_s() in place of the median over the entries. Means, because
  /// lost_fraction is an average over all steps of an entry. Nothing if the machine was not recorded, or if
  /// compute was replayed.
  [[nodiscard]] std::optional<double> step_time_at_speed(double speed) const;
  /// Samples of all batches per second of the median step time.
  [[nodiscard]] double throughput_samples_per_s() const;
  /// Fraction of the step in which a rank is idle or waits for messages, mean over the ranks.
  [[nodiscard]] double bubble_fraction() const;
  /// Coefficient of variation over the ranks: of time that they compute and update, and of their peak memory.
  [[nodiscard]] double stage_time_cv() const;
  [[nodiscard]] double memory_cv() const;
  /// ForecastNotes::balance. \pre `breakdown` and `memory` are of all ranks
  [[nodiscard]] std::map<std::string, double> balance() const;
};

/// Names of the parts of a breakdown, with their members.
const std::vector<std::pair<std::string, double Breakdown::*>>& breakdown_parts();

/// The breakdown of one rank's step from its spans (all of that rank and step) and the step's length.
Breakdown make_breakdown(const std::vector<Span>& spans, int rank, double step_time_s);

/// The spans of Results as Chrome trace JSON for ui.perfetto.dev: one process per rank, one thread per
/// stream. Processes of one rank in several Results are adjacent, and all steps start at 0. Requested steps
/// (Result::shown) replace the representative one and keep their distance from the first. Slices of one
/// thread nest; a stream whose operations overlap without nesting (two collectives in flight) gets several
/// threads. Times are microseconds, rounded to nanoseconds before nesting is decided. An arrow leads from
/// each send to its receive, unless the clocks' error makes it end before it begins. Counter tracks of a
/// process: `live memory`, if known over time, and `bytes in flight` of sends, collectives and copies. Equal
/// Results give equal bytes. \param ranks that are shown; empty: all. \throws InputError if no Result has
/// spans of them
std::string perfetto_json(const std::vector<const Result*>& results, const std::set<int>& ranks = {});
/// Writes perfetto_json() to a file, compressed if its name ends in `.gz`.
void write_timeline(const std::filesystem::path& path, const std::vector<const Result*>& results,
                    const std::set<int>& ranks, bool force);

/// The same spans as PyTorch's profiler writes kernels, one text per rank, for Holistic Trace Analysis. Its
/// names tell communication from memory and compute: collectives and messages are `ncclDevKernel_...`, copies
/// `Memcpy ...`, and the own name is in `args`. Times are whole microseconds, each at least 1. HTA leaves the
/// last ProfilerStep out, so that an empty one follows.
std::map<int, std::string> hta_timelines(const Result& result, const std::set<int>& ranks = {});
/// Writes hta_timelines() as `rankN.json` into a folder.
void write_hta_timelines(const std::filesystem::path& folder, const Result& result,
                         const std::set<int>& ranks, bool force);

/// Execution traces of Chakra, one of every rank: models/chakra.hpp. Durations are those of the spans, and a
/// node waits for what its operation waited for. \pre the result has a Schedule and spans of all ranks
std::vector<std::string> chakra_traces(const Result& result);
/// Writes chakra_traces() as `PREFIX.RANK.et`, and the groups of ranks as `PREFIX.groups.json`.
void write_chakra(const std::string& prefix, const Result& result, bool force);

STEPCAST_JSON(Origin)
STEPCAST_JSON(SpanKind)
STEPCAST_JSON(Span)
STEPCAST_JSON(Configuration)
STEPCAST_JSON(Result)

Result load_result(const std::string& path);

/// Configuration of a run of this Schedule: model, strategy, sizes and resolved options. The caller adds
/// threads, backend, cluster and steps. \param model specification \param batch samples per rank; of a
/// pipeline, per pipeline
Configuration configuration_of(const Schedule& schedule, const std::string& model, int batch);

}  // namespace stepcast
