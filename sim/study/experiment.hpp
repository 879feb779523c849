#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/program.hpp"
#include "sim/evidence/compare.hpp"
#include "sim/study/rows.hpp"
#include "sim/study/study.hpp"

/// The parts of a study that need a machine: measurements before its points are predicted, and their runs.
namespace stepcast {

/// Calls of an experiment to other programs and to its caller.
struct ExperimentCalls {
  /// Runs `stepcast` with these words.
  std::function<ProgramOutput(const std::vector<std::string>&)> program;
  /// Predicts points into predicted_path(). Points with a known row are not predicted again.
  std::function<StudyRows(const std::vector<StudyPoint>&)> predict;
  std::function<void(int total, const std::string& now)> on_progress;  ///< called when one of `total` is done
  std::set<std::string> forecast_options{};  ///< options of `predict` that `run` does not have
  /// Called when the points of `first` have been run once.
  std::function<void(const std::vector<const StudyPoint*>&)> on_first = nullptr;
};

/// One experiment in its folder: traces/, calibration.json, predicted/, references/ and runs/.
struct StudyExperiment {
  const Study& study;  ///< outlives it. \pre study.parts
  std::string folder;

  // Outcome of run_experiment().
  int programs = 0;                     ///< that were run; 0 if all files existed
  std::vector<std::string> warnings{};  ///< of the programs that measured
  std::vector<LeftOut> left_out{};      ///< points that were predicted, but not run
  std::vector<const StudyPoint*> points_run{};

  /// Options that a point's prediction gets from measurements: --trace and --calibration.
  [[nodiscard]] std::vector<std::string> measured_words(const StudyPoint& point) const;
  [[nodiscard]] std::string predicted_path(const StudyPoint& point) const {
    return path("predicted/" + point.name + ".json");
  }
  /// Results of the launches that were run.
  [[nodiscard]] std::vector<std::string> run_paths(const StudyPoint& point) const;
  [[nodiscard]] std::string path(const std::string& name) const { return folder + "/" + name; }
  /// By launch that was run: the time of a few steps of the point's model on one rank, measured before that
  /// launch, over the trace's. Forecasts do not use them. Empty if the study measured no trace, if compute is
  /// not real, and on GPUs, whose results contain their clocks.
  [[nodiscard]] std::vector<double> slowdowns(const StudyPoint& point) const;
  /// Whether the point only serves as baseline of speed-ups.
  [[nodiscard]] bool is_baseline(const StudyPoint& point) const {
    return study.parts->baseline && study.parts->baseline->holds(point.assigned);
  }
};

/// Measures, predicts and runs all points. Existing files are kept, so that an interrupted experiment
/// continues. All programs run one after the other, because they measure. A run that fails is an error of
/// its point, as is a measurement that fails (a model that does not fit into memory). Points that `run: skip`
/// leaves out are only predicted. \param lab name of the virtual clusters \returns a row per key, with
/// measured columns \throws RunError with the words of another program that failed
StudyRows run_experiment(StudyExperiment& experiment, const std::string& lab, const ExperimentCalls& calls);

/// Predictions and runs of points as cases, named by their points.
struct ExperimentCases {
  std::vector<Case> cases;
  std::vector<std::vector<ResultFile>> files;  ///< that the cases point into, by case
};
/// \throws InputError if a point's runs are of another training than its prediction
ExperimentCases cases_of(const StudyExperiment& experiment, const std::vector<const StudyPoint*>& points);

}  // namespace stepcast
