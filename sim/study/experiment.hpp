#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/program.hpp"
#include "sim/evidence/case.hpp"
#include "sim/evidence/lab_report.hpp"
#include "sim/study/rows.hpp"
#include "sim/study/study.hpp"

/// The parts of a study that need a machine: what is measured before its points are predicted, and their runs.
namespace stepcast {

/// What an experiment asks of others.
struct ExperimentCalls {
  /// Runs `stepcast` with these words.
  std::function<ProgramOutput(const std::vector<std::string>&)> program;
  /// Predicts points into predicted_path(); known rows are not asked again.
  std::function<std::map<std::string, StudyRow>(const std::vector<StudyPoint>&)> predict;
  std::function<void(int done, int total, const std::string& now)> on_progress;
  /// Called when the points that come first have been run once.
  std::function<void(const std::vector<const StudyPoint*>&)> on_first = nullptr;
};

/// One experiment in its folder: traces/, calibration.json, predicted/, references/ and runs/. A file that is there is not made
/// again, so that an experiment that was interrupted goes on where it stopped. All programs run one after the other:
/// they measure.
class StudyExperiment {
 public:
  /// \pre study.parts; both outlive it
  StudyExperiment(const Study& study, std::string folder, const ExperimentCalls& calls);

  /// Does everything. A run that fails is its point's error, as is a measurement that fails (a model that does not fit, not
  /// one that is refused); whatever else fails ends the experiment. Points that
  /// `run: skip` leaves out stay predictions.
  /// \returns a row per key, with measured columns \throws RunError with the words of the program that failed
  std::map<std::string, StudyRow> run();

  /// Options that a point's prediction gets from what was measured: --trace and --calibration.
  [[nodiscard]] std::vector<std::string> measured_words(const StudyPoint& point) const;
  [[nodiscard]] std::string predicted_path(const StudyPoint& point) const;
  /// Of the launches that were run.
  [[nodiscard]] std::vector<std::string> run_paths(const StudyPoint& point) const;
  [[nodiscard]] std::string path(const std::string& name) const { return folder_ + "/" + name; }
  /// By launch that was run: the time of a few steps of the point's model on one rank, taken before that launch's runs,
  /// over the trace's. No forecast sees them. Empty where the study measured no trace, the compute is not real, or a GPU
  /// computes, whose clocks are in the files.
  [[nodiscard]] std::vector<double> slowdowns(const StudyPoint& point) const;
  /// Of one launch, whether it ran or is about to.
  [[nodiscard]] std::optional<double> slowdown(const StudyPoint& point, int launch) const;

  /// Predictions and runs of those of the points that are baselines, or of those that are not.
  [[nodiscard]] std::vector<std::string> files_of(const std::vector<const StudyPoint*>& points,
                                                  bool baselines, bool one_launch = false) const;
  /// That were run: 0 where all was there.
  [[nodiscard]] int programs() const { return programs_; }
  /// What measuring warned of.
  [[nodiscard]] const std::vector<std::string>& warnings() const { return warnings_; }
  [[nodiscard]] const std::vector<LeftOut>& left_out() const { return left_out_; }
  /// Points that were run, and their times to copy 1 MiB before every launch.
  [[nodiscard]] const std::vector<const StudyPoint*>& points_run() const { return points_run_; }
  [[nodiscard]] const LabMachine& machine() const { return machine_; }

 private:
  using Points = std::vector<const StudyPoint*>;
  using Words = std::vector<std::string>;

  void measure(const Points& points);
  void calibrate();
  void bench();
  void predict(const Points& points);
  void run_once(const Points& points, int launch);
  void take_reference_steps(const Points& points, int launch);
  void make(const std::string& file, const Words& words, const std::string& lab = "");
  ProgramOutput start(const std::string& lab, const Words& words);
  void ask(const std::string& lab, const Words& words);
  void check(const ProgramOutput& output, const Words& words);
  [[nodiscard]] bool is_baseline(const StudyPoint& point) const;
  [[nodiscard]] std::string trace_path(const StudyPoint& point) const;
  [[nodiscard]] std::string reference_path(const StudyPoint& point, int launch) const;
  [[nodiscard]] std::string run_path(const StudyPoint& point, int launch) const;
  [[nodiscard]] bool has_reference(const StudyPoint& point) const;
  [[nodiscard]] Words run_words(const StudyPoint& point) const;
  [[nodiscard]] int count(const Points& points, int launches) const;
  void add_measured(const StudyPoint& point);

  const Study& study_;
  const StudyParts& parts_;
  std::string folder_;
  const ExperimentCalls& calls_;
  std::map<std::string, StudyRow> rows_;
  std::map<std::pair<std::string, int>, std::string> failed_;  ///< by trace and batch, what measuring it said
  std::vector<LeftOut> left_out_;
  std::vector<std::string> warnings_;
  std::vector<const StudyPoint*> points_run_;
  LabMachine machine_;
  int done_ = 0, total_ = 0, programs_ = 0;
};

/// The case of one point: its prediction beside its runs. \throws InputError when they are of different trainings
Case case_of(const StudyExperiment& experiment, const StudyPoint& point);

/// What `stepcast lab validate` reports of such a study, whose points have `distance`, `rate` and `cluster`.
LabReport lab_report_of(const Study& study, const StudyExperiment& experiment);

}  // namespace stepcast
