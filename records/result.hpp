#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/statistics.hpp"
#include "records/machine_state.hpp"
#include "records/run_context.hpp"
#include "schedule/schedule.hpp"

/// A Result: how a Schedule went, in simulated time (predicted) or on real devices (measured). One schema for
/// both, with the same operation names, so that validation is a difference of two files.
namespace stepcast {

inline constexpr const char* kResultSchema = "stepcast.result/2";

enum class Origin : std::uint8_t { kMeasured, kPredicted };

/// One operation of one step of one rank, in seconds since the start of that step on rank 0. A hook's span
/// lies inside the span of its backward operation.
struct Span {
  int rank = 0;
  Stream stream = Stream::kCompute;
  SpanKind kind = SpanKind::kCompute;
  std::string name;
  double start_s = 0.0;
  double end_s = 0.0;
  double bytes = 0.0;  ///< of the message, copy or collective array; 0 where nothing travels
  int to = -1;         ///< rank that the message is sent to; -1: none is
  int from = -1;       ///< rank that it is received from
  int tag = 0;         ///< by which both ends match
  int step = -1;       ///< in Result::shown alone
};
/// How an operation of one rank went.
Span span_of(int rank, const Op& op, double start_s, double end_s);

/// Where a step's time went on one rank. The exclusive parts sum to the step time:
///
///     compute + exposed_communication + input_and_host + optimizer_and_copies + idle = step
///
/// and exposed + overlapped = communication, the union of the comm spans. An instant counts as the innermost
/// operation that runs then on the compute, copy or host stream (a copy inside a backward is a copy); only an
/// instant at which none runs, or at which a forward or backward stands still for what ranks that share its layers put
/// together, is exposed communication, and one without any operation is idle. Time after the
/// last span counts as host.
struct Breakdown {
  double compute_s = 0.0;
  double exposed_communication_s = 0.0;
  double overlapped_communication_s = 0.0;
  double input_and_host_s = 0.0;
  double optimizer_and_copies_s = 0.0;
  double idle_s = 0.0;
};

/// The bytes that one rank held during a step. `at_peak_bytes` says by category what they were when they were
/// most: parameters, gradients, optimizer_state (with what the optimizer needs while it runs), activations
/// (with what other kernels need) and communication_buffers. Samples in host memory are not counted.
struct MemoryUse {
  int rank = 0;
  double peak_bytes = 0.0;
  std::map<std::string, double> at_peak_bytes;
  std::vector<double> time_s;  ///< since the start of that step on rank 0; empty where only the peak is known
  std::vector<double> live_bytes;  ///< from that time on
};

/// The machine beside the measured steps of a run: entry i holds for the steps [i k, (i + 1) k), k being `steps`,
/// of the rank that was given least.
struct RunMachine {
  int steps = 0;  ///< 0: unknown, as in files of older versions
  MachineLog log;
  /// Of the traced model's own steps, taken right before on one rank, over those of the trace; 0: unknown.
  double slowdown = 0.0;
  /// By step, what it would have taken had others left the cores alone (undisturbed_step_s in runner/execute/rank_report.hpp);
  /// empty where the run did not tell.
  std::vector<double> undisturbed_s{};
};

/// What was run or predicted: equal configurations are comparable.
struct Configuration {
  std::string model{};  ///< full specification
  std::string strategy{};
  int world_size = 1;
  int batch = 0;          ///< per rank; of a pipeline, per pipeline
  int data_parallel = 1;  ///< batches per step
  int micro_batches = 1;
  int threads = 1;
  std::string backend = "gloo";
  std::string cluster{};  ///< name with settings: `star:hosts=8`; "" for a measured run on this machine
  std::string device{};   ///< of a prediction moved to one: `h100-sxm`; "": the one that was measured
  int steps = 0;
  int warmup_steps = 0;
  std::map<std::string, std::string> options{};  ///< of the strategy, resolved: all that mean something here
  std::string label{};  ///< see Schedule::label; says no more than `strategy` and `options`
  /// `real`, or `replayed`: ranks wait as long as a trace says that computing takes.
  std::string compute = "real";
  /// Of a run: `schedule`, or `reference`: PyTorch's own parts instead of a Schedule.
  std::string engine = "schedule";

  /// One that is not the strategy's: what makes another case of a run, in its label too. "": not given.
  void add_option(const std::string& name, const std::string& value) {
    if (value.empty()) return;
    options[name] = value;
    label.append(", ").append(name).append(" ").append(value);
  }
};

/// Steps that a timeline is asked to show, in seconds since the start of the first of them on rank 0.
struct ShownSteps {
  std::vector<Span> spans;
  std::vector<MemoryUse> memory;  ///< what ranks hold over time, where that is known
};

struct Result {
  RunContext context;
  Origin origin = Origin::kMeasured;
  std::vector<Ancestor> lineage;
  Configuration configuration;
  std::vector<std::vector<double>> step_time_s;  ///< [rank][step], warm-up excluded
  std::vector<double> warmup_step_time_s;        ///< of rank 0, kept apart
  std::vector<double> loss;                      ///< per step, measured runs only
  std::vector<Span> spans;                       ///< of one representative step
  std::vector<Breakdown> breakdown;              ///< per rank, median over steps
  std::vector<MemoryUse> memory;                 ///< of the ranks that `breakdown` is of
  double bytes_sent_per_rank = 0.0;              ///< largest over the ranks, one step
  std::map<std::string, std::string> notes;      ///< `collective_fidelity`: `message`, ...
  /// What predictors too simple to need a simulator say, stored beside a prediction: `ideal_scaling`,
  /// `alpha_beta`.
  std::map<std::string, double> trivial_step_time_s;
  ShownSteps shown;         ///< none: the representative one; in no file
  double operations = 0.0;  ///< of a prediction: that were replayed, all ranks and steps; in no file
  RunMachine machine;       ///< of measured runs
  /// Of a prediction: what the machine gave while its inputs were measured: `measuring`, `calibrating`.
  std::map<std::string, MachineSpeed> input_speeds;
  /// Options of `stepcast predict` that make this prediction again; none where it was made otherwise.
  std::vector<std::string> asked;

  /// The first key whose value cannot be of a run or a prediction; "" where all can.
  [[nodiscard]] std::string problem() const;
  /// Median over the steps of the slowest rank's step time.
  [[nodiscard]] double median_step_time_s() const;
  /// The same of what steps would have taken had others left the cores alone, where the run told that apart.
  [[nodiscard]] double undisturbed_step_time_s() const;
  /// Of a run: the machine over all measured steps.
  [[nodiscard]] MachineSpeed machine_speed() const { return speed_of({&machine.log}, context.cpu_model); }
  /// The measured step on a machine that gives `speed`:
  ///
  ///     median over the entries of `machine` (mean step of the slowest rank * (1 - taken)) * median probe / speed
  ///
  /// or, where the run told apart what others took, undisturbed_step_time_s() for that median over the entries. Means,
  /// because what takes time from a few steps alone is taken off all of them. Nothing where the run does not know its
  /// machine, and where ranks only waited.
  [[nodiscard]] std::optional<double> step_time_at_speed(double speed) const;
  /// Samples of all batches over the median step time.
  [[nodiscard]] double throughput_samples_per_s() const;
  /// The part of the step in which ranks stand idle or wait for messages of others, mean over the ranks.
  [[nodiscard]] double bubble_fraction() const;
  /// Standard deviation over mean, across ranks: of what they compute and update, and of their peak memory.
  [[nodiscard]] double stage_time_cv() const;
  [[nodiscard]] double memory_cv() const;
};

/// compute, exposed_communication, overlapped_communication, input_and_host, optimizer_and_copies, idle, with
/// the member of Breakdown that holds them.
const std::vector<std::pair<std::string, double Breakdown::*>>& breakdown_parts();

/// The breakdown of one rank's step from its spans (all of that rank and step) and the step's length.
Breakdown make_breakdown(const std::vector<Span>& spans, int rank, double step_time_s);

/// The spans of Results as Chrome trace JSON for ui.perfetto.dev: one process per rank, one thread per stream;
/// of several Results the same rank's processes stand below each other, and all steps start at 0. Steps that were asked
/// for (Result::shown) take the place of the representative one, each as far from the first as it was. Slices of one
/// thread nest: where a stream runs operations at once that overlap without nesting (two collectives in flight),
/// it gets as many threads as it needs. Times are microseconds, rounded to nanoseconds before nesting is decided.
/// An arrow leads from each send to the receive of the same message, unless clocks say that it ended before it
/// began. Counter tracks of a process: `live memory`, where the Result knows it over time, and `bytes in flight`
/// of the sends, collectives and copies that the rank has under way. Same Results, same bytes.
/// \param ranks that are shown; none: all. \throws InputError where no Result has spans of them
std::string perfetto_json(const std::vector<const Result*>& results, const std::set<int>& ranks = {});
/// The same in a file, compressed where its name ends in `.gz`.
void write_timeline(const std::filesystem::path& path, const std::vector<const Result*>& results,
                    const std::set<int>& ranks, bool force);

void to_json(nlohmann::json& json, Origin origin);
void from_json(const nlohmann::json& json, Origin& origin);
void to_json(nlohmann::json& json, SpanKind kind);
void from_json(const nlohmann::json& json, SpanKind& kind);
void to_json(nlohmann::json& json, const Span& span);
void from_json(const nlohmann::json& json, Span& span);
void to_json(nlohmann::json& json, const Configuration& configuration);
void from_json(const nlohmann::json& json, Configuration& configuration);
void to_json(nlohmann::json& json, const Result& result);
void from_json(const nlohmann::json& json, Result& result);

Result load_result(const std::string& path);

}  // namespace stepcast
