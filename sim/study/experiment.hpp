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

/// What an experiment needs from its caller.
struct ExperimentCalls {
  /// Runs `stepcast` with these words.
  std::function<ProgramOutput(const std::vector<std::string>&)> program;
  /// Predicts points into predicted_path(). Points with a known row are not predicted again.
  std::function<std::map<std::string, StudyRow>(const std::vector<StudyPoint>&)> predict;
  std::function<void(int done, int total, const std::string& now)> on_progress;
  std::set<std::string> forecast_options{};  ///< options of `predict` that `run` does not have
  /// Called when the points of `first` have been run once.
  std::function<void(const std::vector<const StudyPoint*>&)> on_first = nullptr;
};

/// One experiment in its folder: traces/, calibration.json, predicted/, references/ and runs/. Existing files
/// are kept, so that an interrupted experiment continues. All programs run one after the other, because they
/// measure.
class StudyExperiment {
 public:
  /// \param lab name of the virtual clusters \pre study.parts; `study` and `calls` outlive it
  StudyExperiment(const Study& study, std::string folder, std::string lab, const ExperimentCalls& calls);

  /// Measures, predicts and runs all points. A run that fails is an error of its point, as is a measurement
  /// that fails (a model that does not fit into memory). Points that `run: skip` leaves out are only
  /// predicted. \returns a row per key, with measured columns \throws RunError with the words of another
  /// program that failed
  std::map<std::string, StudyRow> run();

  /// Options that a point's prediction gets from measurements: --trace and --calibration.
  [[nodiscard]] std::vector<std::string> measured_words(const StudyPoint& point) const;
  [[nodiscard]] std::string predicted_path(const StudyPoint& point) const;
  /// Results of the launches that were run.
  [[nodiscard]] std::vector<std::string> run_paths(const StudyPoint& point) const;
  [[nodiscard]] std::string path(const std::string& name) const { return folder_ + "/" + name; }
  /// By launch that was run: the time of a few steps of the point's model on one rank, measured before that
  /// launch, over the trace's. Forecasts do not use them. Empty if the study measured no trace, if compute is
  /// not real, and on GPUs, whose results contain their clocks.
  [[nodiscard]] std::vector<double> slowdowns(const StudyPoint& point) const;

  /// Whether the point only serves as baseline of speed-ups.
  [[nodiscard]] bool is_baseline(const StudyPoint& point) const;
  /// Number of programs that were run; 0 if all files existed.
  [[nodiscard]] int programs() const { return programs_; }
  /// Warnings of the programs that measured.
  [[nodiscard]] const std::vector<std::string>& warnings() const { return warnings_; }
  /// Points that were predicted, but not run.
  [[nodiscard]] const std::vector<LeftOut>& left_out() const { return left_out_; }
  [[nodiscard]] const std::vector<const StudyPoint*>& points_run() const { return points_run_; }

 private:
  using Points = std::vector<const StudyPoint*>;
  using Words = std::vector<std::string>;
  struct Measurement;

  [[nodiscard]] std::vector<Measurement> measurements_of(const Points& points) const;
  void measure(const Points& points);
  void measure(const Measurement& one, const std::vector<int>& batches);
  void calibrate();
  void bench();
  void predict(const Points& points);
  void run_once(Points points, int launch);
  void run_point(const StudyPoint& point, int launch);
  void measure_references(const Points& points, int launch);
  void make(const std::string& file, const Words& words, const std::string& lab = "");
  ProgramOutput start(const std::string& lab, const Words& words);
  void check(const ProgramOutput& output, const Words& words);
  void advance(const std::string& now) { calls_.on_progress(++done_, total_, now); }
  [[nodiscard]] std::string trace_path(const StudyPoint& point) const;
  [[nodiscard]] std::string reference_path(const StudyPoint& point, int launch) const;
  [[nodiscard]] std::string run_path(const StudyPoint& point, int launch) const;
  [[nodiscard]] bool has_reference(const StudyPoint& point) const;
  [[nodiscard]] std::optional<double> slowdown(const StudyPoint& point, int launch) const;
  [[nodiscard]] Words run_words(const StudyPoint& point) const;

  const Study& study_;
  const StudyParts& parts_;
  std::string folder_, lab_;
  const ExperimentCalls& calls_;
  std::map<std::string, StudyRow> rows_;
  std::map<std::pair<std::string, int>, std::string> failed_;  ///< errors of measurements, by trace and batch
  std::vector<LeftOut> left_out_;
  std::vector<std::string> warnings_;
  Points points_run_;
  int done_ = 0, total_ = 0, programs_ = 0;
};

/// Predictions and runs of points as cases, named by their points.
struct ExperimentCases {
  std::vector<Case> cases;
  std::vector<std::vector<ResultFile>> files;  ///< that the cases point into, by case
};
/// \throws InputError if a point's runs are of another training than its prediction
ExperimentCases cases_of(const StudyExperiment& experiment, const std::vector<const StudyPoint*>& points);

}  // namespace stepcast
