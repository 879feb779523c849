#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "records/machine_state.hpp"
#include "records/result.hpp"
#include "sim/evidence/errors.hpp"

/// Evidence: what was measured beside what was forecast, and by how much that missed. Trainings that were run
/// and predicted, those of a virtual cluster and rows that others published are all cases.
namespace stepcast {

/// A number and the range around it: of launches, or of everything that assumptions leave open.
struct Estimate {
  double value = 0.0, low = 0.0, high = 0.0;
};
/// The median, the least and the largest. \pre values not empty
Estimate estimate_of(const std::vector<double>& values);

/// A file that a case stands on.
struct CaseFile {
  std::string path{};
  std::string sha1{};
  std::string date{};
  double load_average = 0.0;
  double step_time_s = 0.0;
  const Result* result = nullptr;  ///< what it holds, where this program has read it
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

/// How a case counts.
enum class Standing : std::uint8_t {
  kJudged,        ///< predicted and measured
  kRepeated,      ///< the same, but it differs from a fitted one by nothing but the cores of its host
  kWithheld,      ///< predicted, no measurement here
  kFitted,        ///< a prediction may use it
  kNotPredicted,  ///< to be predicted, but there is no prediction
};
const char* to_text(Standing standing);

struct Case {
  Configuration configuration{};
  std::string name{};                    ///< what tells it apart: strategy with options, `fsdp x4`
  std::string source{};                  ///< of a published row: the case that it belongs to
  std::string quantity = "step_time_s";  ///< by which it is judged
  Standing standing = Standing::kJudged;
  std::optional<Estimate> measured{};       ///< median, fastest and slowest launch
  std::optional<Estimate> predicted{};      ///< with what assumptions leave open
  std::optional<Estimate> blind{};          ///< forecast before the measurement was known
  std::map<std::string, double> trivial{};  ///< by name, see trivial.hpp
  std::vector<PhaseError> phases{};
  std::vector<MemoryError> memory{};  ///< one per rank that both sides know
  std::vector<CaseFile> launches{};
  std::optional<CaseFile> prediction{};
  /// `measured` as it would have been on the machine as it was while the forecast's trace was measured: by the traced
  /// model's own steps beside the runs (RunMachine::slowdown), or else Result::step_time_at_speed; nothing where one of
  /// the files does not know its machine.
  std::optional<Estimate> measured_at_equal_speed{};
  /// What the machine gave while `measuring`, `calibrating` and `running`, where that is known.
  std::map<std::string, MachineSpeed> machines{};
  /// Of a case in a virtual cluster: how far it lies from what was calibrated, the rate of a host's link
  /// (where they differ, of most hosts), and the step of one rank with this batch and no communication.
  std::string distance{};
  double link_rate_bytes_per_s = 0.0;
  double baseline_step_time_s = 0.0;

  /// Measured and predicted.
  [[nodiscard]] bool has_error() const { return measured && predicted && measured->value > 0.0; }
  /// predicted / measured - 1. \pre has_error()
  [[nodiscard]] double relative_error() const { return predicted->value / measured->value - 1.0; }
  [[nodiscard]] bool has_error_at_equal_speed() const { return has_error() && measured_at_equal_speed; }
  /// predicted / measured_at_equal_speed - 1. \pre has_error_at_equal_speed()
  [[nodiscard]] double error_at_equal_speed() const {
    return predicted->value / measured_at_equal_speed->value - 1.0;
  }
  /// (predicted - measured) / measured exposed communication: what compute that is replayed as it was measured
  /// cannot dilute. Exposed communication is that of the runs' breakdowns, mean over the ranks. Nothing where they
  /// do not say it, or where it is less than `kMinExposedFraction` of the step.
  [[nodiscard]] std::optional<double> error_over_exposed() const;
  static constexpr double kMinExposedFraction = 0.05;
  /// Of a trivial predictor. \pre measured
  [[nodiscard]] double trivial_error(double value) const { return value / measured->value - 1.0; }
  /// Whether some launch took longer than predicted and some less. \pre has_error()
  [[nodiscard]] bool inside_launch_range() const {
    return measured->low <= predicted->value && predicted->value <= measured->high;
  }
  /// At most `bar` off, or inside the range of the launches.
  [[nodiscard]] bool within(double bar) const;
};

/// `vgg11-bn-cifar ddp, world size 2, batch 16, 1 thread`
std::string describe(const Configuration& configuration);
/// `pipeline, split 3-1, 4 micro-batches`: what tells cases of one model, batch and world size apart.
std::string label_of(const Configuration& configuration);
/// A published row by its source and name, a training by its configuration.
std::string describe(const Case& one);

/// Trivial predictors that came closer to the measured value than the prediction did, with signed errors.
std::map<std::string, double> better_trivial_predictors(const Case& one);

/// A trivial predictor over the cases for which it has a value.
struct TrivialAccuracy {
  Errors errors;
  double predictions = 0.0;  ///< median of the predictions over the same cases
};

struct Accuracy {
  Errors errors;
  std::map<std::string, TrivialAccuracy> trivial;
};

/// Of the cases that have an error and are `counted`. All zero when there is none.
Accuracy accuracy_of(
    const std::vector<Case>& cases,
    const std::function<bool(const Case&)>& counted = [](const Case&) { return true; });

/// As `accuracy_of`, at equal machine speed; of the cases that know it.
Errors errors_at_equal_speed(const std::vector<Case>& cases);

/// The same over exposed communication; of the cases that have enough of it.
Errors errors_over_exposed(const std::vector<Case>& cases);

/// How much of the median error is the machine's, and what disturbed it, in one sentence; "" where no case knows.
std::string machine_verdict(const std::vector<Case>& cases);

/// Throughput of n ranks over throughput of one rank with the same threads:
///
///     weak:    same batch per rank    d T_1(b) / T_n(b)
///     strong:  same global batch      T_1(d b) / T_n(b)
///
/// over n ranks that train on d batches: d = n, but for pipelines, whose ranks share batches and scale
/// strongly. T_1 is measured or predicted as T_n is, but for cases that carry a baseline: that serves both.
struct Speedup {
  const Case* scaled = nullptr;
  Configuration baseline{};
  bool strong = false;
  std::optional<Estimate> measured{};  ///< with the range of the scaled case's launches
  std::optional<double> predicted{};
  [[nodiscard]] double relative_error() const { return *predicted / measured->value - 1.0; }
};

/// Every speed-up over a baseline that a case carries, or over a `single` case of the same model, threads and
/// backend that `cases` contain.
std::vector<Speedup> speedups(const std::vector<Case>& cases);

/// The cases with an error, the largest first.
std::vector<Case> worst_first(std::vector<Case> cases);

/// The table that every comparison prints, one row per case. Columns: `case`, `row`, `model`, `strategy`,
/// `ranks`, `batch`, `threads`, `compute`, `cluster`, `distance`, `what`, `measured`, `launches`, `low`,
/// `high`, `predicted`, `error`, `at equal speed` (the error there), `over exposed` (relative to exposed communication),
/// `blind forecast`, `in range`, `better trivial predictors`, `counts as`, and any trivial predictor by its title.
/// \pre known columns
std::string cases_text(const std::vector<Case>& cases, const std::vector<std::string>& columns);
/// From `predicted` on, those that these cases have something for.
std::vector<std::string> error_columns(const std::vector<Case>& cases);
/// A line each: all errors, those of the trivial predictors, at equal machine speed and over exposed communication.
std::string errors_text(const std::vector<Case>& cases);

/// The same with `trivial`: by name, and `median_of_predictions_over_same_cases` beside.
nlohmann::json accuracy_json(const Accuracy& accuracy);
/// That of all cases, with `at_equal_speed`, `machine_verdict` and `over_exposed_communication` where they know.
nlohmann::json accuracy_json(const std::vector<Case>& cases);
nlohmann::json speedups_json(const std::vector<Speedup>& all);

void to_json(nlohmann::json& json, const Case& one);
/// Of a training. What follows from other keys (errors, `better`) is not read but computed again.
/// \throws InputError for a step time that is not positive
void from_json(const nlohmann::json& json, Case& one);

}  // namespace stepcast
