#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "records/machine_state.hpp"
#include "records/result.hpp"
#include "sim/evidence/errors.hpp"

/// A case: a measured training step next to its forecast, with errors and baselines. Own runs and virtual
/// clusters are cases.
namespace stepcast {

/// A number with a range over launches.
struct Estimate {
  double value = 0.0, low = 0.0, high = 0.0;
};
/// The median, the least and the largest. \pre values not empty
Estimate estimate_of(const std::vector<double>& values);

/// A Result and the file it came from.
struct ResultFile {
  std::string path;
  std::string sha1;
  Result result;
};

/// One part of the step, mean over the ranks, median over the launches.
struct PhaseError {
  std::string name;
  double measured_s = 0.0;
  double predicted_s = 0.0;
};

/// Peak memory of one rank, median over the launches.
struct MemoryError {
  int rank = 0;
  double measured_bytes = 0.0;
  double predicted_bytes = 0.0;
  [[nodiscard]] double relative_error() const { return predicted_bytes / measured_bytes - 1.0; }
};

struct Case {
  Configuration configuration{};
  std::string name{};                       ///< identifies it: strategy with options, `fsdp x4`
  std::optional<Estimate> measured{};       ///< step: median, fastest and slowest launch
  std::optional<double> predicted{};        ///< step
  std::map<std::string, double> trivial{};  ///< by name, see trivial.hpp
  std::vector<PhaseError> phases{};
  std::vector<MemoryError> memory{};  ///< one per rank that both files contain
  std::vector<const ResultFile*> launches{};
  const ResultFile* prediction = nullptr;  ///< null if there is none
  /// `measured`, speed-normalised to the machine as it was while the forecast's trace was measured: by the
  /// traced model's own steps between the runs (RunMachine::slowdown), else Result::step_time_at_speed. None
  /// if a file does not contain its machine's speed.
  std::optional<Estimate> measured_at_equal_speed{};
  /// Machine speed while `measuring`, `calibrating` and `running`, if known.
  std::map<std::string, MachineSpeed> machines{};

  /// True if it is measured and predicted.
  [[nodiscard]] bool has_error() const { return measured && predicted && measured->value > 0.0; }
  /// predicted / measured - 1. \pre has_error()
  [[nodiscard]] double relative_error() const { return *predicted / measured->value - 1.0; }
  /// predicted / measured_at_equal_speed - 1. None without one of them.
  [[nodiscard]] std::optional<double> error_at_equal_speed() const;
  /// (predicted - measured) / measured exposed communication, which replayed compute cannot dilute. Exposed
  /// communication is the mean over the ranks of the runs' breakdowns. None without it, or if it is less than
  /// `kMinExposedFraction` of the step.
  [[nodiscard]] std::optional<double> error_over_exposed() const;
  static constexpr double kMinExposedFraction = 0.05;
  /// value / measured - 1, such as the error of a baseline. None without a measured value.
  [[nodiscard]] std::optional<double> error_of(double value) const;
  /// True if some launch took longer than predicted and some less. \pre has_error()
  [[nodiscard]] bool inside_launch_range() const {
    return measured->low <= *predicted && *predicted <= measured->high;
  }
  /// At most `bar` off, or inside the range of the launches.
  [[nodiscard]] bool within(double bar) const;
};

/// Label that separates cases of one model, batch and world size: `pipeline, split 3-1, 4 micro-batches`.
std::string label_of(const Configuration& configuration);

/// Baselines that came closer to the measurement than the prediction, with signed errors.
std::map<std::string, double> better_trivial_predictors(const Case& one);

/// Errors of a baseline over the cases for which it has a value.
struct TrivialAccuracy {
  Errors errors;
  double predictions = 0.0;  ///< median error of the predictions over the same cases
};

struct Accuracy {
  Errors errors;
  std::map<std::string, TrivialAccuracy> trivial;
};

/// Accuracy over the cases that have an error. All 0 without one.
Accuracy accuracy_of(const std::vector<Case>& cases);

/// Errors of the cases that have one. \param error_of Case::error_at_equal_speed or Case::error_over_exposed
Errors errors_by(const std::vector<Case>& cases, std::optional<double> (Case::*error_of)() const);

/// The machine's change of speed, errors with and without it, and its interference, in one sentence; empty
/// if unknown.
std::string machine_verdict(const std::vector<Case>& cases);

/// Throughput of n ranks over throughput of one rank with the same threads:
///
///     weak:    same batch per rank    d T_1(b) / T_n(b)
///     strong:  same global batch      T_1(d b) / T_n(b)
///
/// over n ranks that train on d batches: d = n, but for pipelines, whose ranks share batches and scale
/// strongly. T_1 is measured or predicted as T_n is.
struct Speedup {
  const Case* scaled = nullptr;
  Configuration baseline{};
  bool strong = false;
  std::optional<Estimate> measured{};  ///< with the range of the scaled case's launches
  std::optional<double> predicted{};
  [[nodiscard]] double relative_error() const { return *predicted / measured->value - 1.0; }
};

/// Every speed-up over a `single` case of the same model, threads, device, micro-batches and options of every
/// training. One with the same backend goes first.
std::vector<Speedup> speedups(const std::vector<Case>& cases);

/// The cases with an error, the largest first.
std::vector<Case> worst_first(std::vector<Case> cases);

/// A table for people, one row per case. Columns: `model`, `strategy`, `ranks`, `batch`, `threads`,
/// `measured`, `launches`, `low`, `high`, `predicted`, `error`, `at equal speed` (speed-normalised error),
/// `over exposed` (error over exposed communication), `in range`, `better trivial predictors`.
/// \pre known columns
std::string cases_text(const std::vector<Case>& cases, const std::vector<std::string>& columns);
/// One line each: all errors, those of the baselines, speed-normalised and over exposed communication.
std::string errors_text(const std::vector<Case>& cases);

/// Errors of all cases; with `trivial` by name, and `median_of_predictions_over_same_cases` beside; with
/// `at_equal_speed`, `machine_verdict` and `over_exposed_communication` if known.
nlohmann::json accuracy_json(const std::vector<Case>& cases);

void to_json(nlohmann::json& json, const Case& one);

}  // namespace stepcast
