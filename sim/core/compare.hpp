#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "sim/core/result.hpp"

/// How good predictions were: pure functions on Results.
namespace stepcast {

/// A Result and the file it came from.
struct ResultFile {
  std::string path;
  std::string sha1;
  Result result;
};
ResultFile load_result_file(const std::string& path);
/// Which kind of machine-written file `path` is: `stepcast.result/2`; "" when it is none.
std::string schema_of(const std::string& path);

/// All measured launches and the one prediction of one configuration.
struct Case {
  Configuration configuration;  ///< of the first launch
  std::vector<const ResultFile*> launches;
  const ResultFile* prediction = nullptr;

  [[nodiscard]] std::vector<double> launch_step_time_s() const;
  [[nodiscard]] double measured_step_time_s() const;  ///< median over the launches
  [[nodiscard]] double measured_low_s() const;        ///< fastest launch
  [[nodiscard]] double measured_high_s() const;       ///< slowest launch
  [[nodiscard]] double predicted_step_time_s() const;
  [[nodiscard]] double relative_error() const;     ///< predicted / measured - 1
  [[nodiscard]] bool inside_launch_range() const;  ///< low <= predicted <= high
};

/// `vgg11-bn-cifar ddp, world size 2, batch 16, 1 thread`
std::string describe(const Configuration& configuration);

/// True when both describe the same training step: model, strategy, world size, batch, micro-batches,
/// threads, backend, engine, extra options, and for `ddp` the bucket caps. Cluster, steps and warm-up are
/// circumstances, not the case.
bool same_case(const Configuration& a, const Configuration& b);

/// Groups by configuration, in the order of the files. Cases may lack launches or a prediction.
/// \throws InputError when two predictions describe the same case (both files are named).
std::vector<Case> group_cases(const std::vector<ResultFile>& files);

/// A prediction never descends from what it is compared with.
/// \throws InputError naming both files when `lineage` of the file `prediction` contains `measured`, whose
/// bytes hash to `measured_sha1`.
void refuse_descent(const std::string& prediction, const std::vector<Ancestor>& lineage,
                    const std::string& measured, const std::string& measured_sha1);

/// `refuse_descent` of every prediction from every launch.
void check_lineage(const std::vector<Case>& cases);

/// Peak memory of one rank, median over the launches.
struct MemoryError {
  int rank = 0;
  double measured_bytes = 0.0;
  double predicted_bytes = 0.0;
  [[nodiscard]] double relative_error() const { return predicted_bytes / measured_bytes - 1.0; }
};

/// One per rank that both sides know.
std::vector<MemoryError> memory_errors(const Case& one);

/// One part of the step, mean over the ranks, median over the launches.
struct PhaseError {
  std::string name;
  double measured_s = 0.0;
  double predicted_s = 0.0;
};

/// compute, exposed_communication, overlapped_communication, input_and_host, optimizer_and_copies, idle.
/// Empty when either side has no breakdown.
std::vector<PhaseError> phase_errors(const Case& one);
/// The names of the phases in that order with the member of Breakdown that holds them.
const std::vector<std::pair<std::string, double Breakdown::*>>& breakdown_parts();
/// Mean over the ranks of one Result.
Breakdown mean_breakdown(const Result& result);

/// Step time by trivial predictor: those stored in the prediction, and `nearest_measured`, the measured time
/// of the nearest other case of the same model: `single` for a strategy, or where that was not measured the
/// case that differs in the fewest options and then least in micro-batches; for `single`, the strategy with
/// the smallest world size, first by name. Absent where there is no such case.
std::map<std::string, double> trivial_predictions(const Case& one, const std::vector<Case>& all);

struct Accuracy {
  double median_absolute_relative_error = 0.0;
  double worst_absolute_relative_error = 0.0;
  std::map<std::string, double> trivial_median_absolute_relative_error;
};
/// \pre cases not empty, each with launches and a prediction
Accuracy summarize(const std::vector<Case>& cases);

/// Throughput of world_size ranks over throughput of one rank with the same threads:
///
///     weak:    same batch per rank    d T_1(b) / T_n(b)
///     strong:  same global batch      T_1(d b) / T_n(b)
///
/// over n ranks that train on d batches: d = n, but for pipelines, whose ranks share batches and scale
/// strongly.
struct Speedup {
  const Case* scaled = nullptr;
  const Case* baseline = nullptr;  ///< the `single` case
  bool strong = false;
  double measured = 0.0;   ///< 0 where a side was not measured
  double predicted = 0.0;  ///< 0 where a side was not predicted
  [[nodiscard]] double relative_error() const { return predicted / measured - 1.0; }
};

/// Every speed-up over a `single` case of the same model, threads and backend that `cases` contain.
std::vector<Speedup> speedups(const std::vector<Case>& cases);

/// Everything `compare` knows of predictions, in the schema `stepcast.compare/1` but without the context. Of
/// no case there are no medians. \pre cases each with launches and a prediction
nlohmann::json comparison_json(const std::vector<Case>& cases, const std::vector<Speedup>& speedups);

}  // namespace stepcast
