#pragma once

#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "sim/study/expectation.hpp"
#include "sim/study/figures.hpp"
#include "sim/study/points.hpp"

/// A study: questions to `stepcast predict`, told by one file.
namespace stepcast {

/// One question.
struct StudyPoint {
  Assignment assigned;  ///< what the file assigns, names of its own included
  Assignment options;   ///< of the command line, by `--strategy`; switches have no value
  std::string key;      ///< the same as words, sorted: equal questions have equal keys
  std::string name{};   ///< of its files, where it is run
  std::string model{};  ///< as one rank has it, with the parts of the mesh that share layers

  /// {"--strategy", "ddp", ...}
  [[nodiscard]] std::vector<std::string> words() const;
};

/// Points that are left out, and why.
struct LeftOut {
  std::string reason;
  std::size_t points = 0;
  std::vector<std::string> names{};  ///< of those that have one: the points of studies that run
};
/// Adds a point to those of that reason. \param name may be ""
void leave_out(std::vector<LeftOut>& all, const std::string& reason, const std::string& name);

/// Points that are left out for a reason.
struct SkipRule {
  Condition when;
  std::string because;
};

/// About so many seconds of steps, by the predicted step time.
struct StepsRule {
  double seconds = 1.0;
  int at_least = 1, at_most = 1'000'000;
};

/// What one change does to the step time, between two points.
struct StudyChange {
  std::string name, plain, changed;  ///< of the points
};

/// A figure of `stepcast plot`, from the predictions and runs of some points.
struct EvidenceFigure {
  std::string figure, file;
  std::vector<std::string> words{};  ///< more options of `stepcast plot`
  std::optional<Condition> where{};
  bool with_baselines = false;
  bool one_launch = false;
};

/// The parts of a study whose points are run for real: what is measured before, how they run, what is made of it.
///
///     name: "{way}.{world-size}"                        # of a point's files
///     calibrate: {nproc: 2}                             # options of `stepcast calibrate`; with `lab: CLUSTER` in a lab
///     measure: {steps: 15, rounds: 2}                   # of `stepcast measure`, for each model of the points at every
///                                                       # batch and micro-batch; rounds are spread over the models
///     bench: {nproc: 2, max: 16MiB}                     # of `stepcast bench`, held against its prediction
///     run: {nproc: "{world-size}", launches: 3}         # of `stepcast run`, beside what a point says of the training
///
/// `run` also takes `lab` (a cluster), `at_least` launches although it is later than `until`, `steps` as
/// {seconds: 1.5, at_least: 4, at_most: 30}, and `skip` with conditions on predicted columns. `first` holds for points
/// that are predicted, run once and compared before all others, `baseline` for those that are no cases but baselines
/// of speed-ups.
struct StudyParts {
  std::string name;
  std::optional<Assignment> calibrate, measure, bench, run;
  std::string calibrate_lab, run_lab, lab_name = "study";
  int measure_rounds = 1;
  int launches = 3, least_launches = 1;
  double until_s = std::numeric_limits<double>::infinity();
  std::optional<StepsRule> steps;
  std::vector<SkipRule> run_skip;
  std::optional<Condition> first, baseline;
  bool lab_report = false;
  std::vector<StudyChange> changes;
  std::vector<EvidenceFigure> figures;
};

/// What devices and an epoch are, for columns that follow from others.
struct StudyCost {
  std::optional<double> per_device_hour;  ///< in whatever currency
  std::optional<double> epoch_samples;
};

struct Study {
  std::string title;
  std::string about;  ///< what else there is to say; may be empty
  std::string path;
  std::vector<std::string> names;  ///< that points assign, in the file's order; columns of the results
  std::vector<StudyPoint> points;
  std::vector<LeftOut> left_out;
  std::vector<Expectation> expectations;
  bool clock = false;  ///< rows say how long their answers took
  StudyCost cost;
  std::vector<StudyFigure> figures;
  std::optional<StudyParts> parts;  ///< of a study that runs
};

/// What a study may say to the program that answers it.
struct StudyVocabulary {
  std::vector<std::string> options;   ///< names without dashes
  std::vector<std::string> switches;  ///< those of them that take no value
  /// Whether an option means something beside what else a point says: `bucket-cap` does to `ddp` alone.
  std::function<bool(const std::string& option, const Assignment& point)> matters;
  /// StudyPoint::model; without it the point's `model`.
  std::function<std::string(const Assignment& point)> model_of_rank = nullptr;
};

/// Reads a file such as
///
///     study: Which bucket cap suits which network?
///     about: DDP and FSDP of BERT-base
///     predict: {model: bert-base, device: h100-sxm, batch: 8, cluster: "h100-hosts:hosts={world-size/8}"}
///     points:
///       - grid: {strategy: [ddp, fsdp], world-size: [8, 16, 32], bucket-cap: [5MiB, 25MiB]}
///     skip:
///       - {when: {strategy: fsdp, world-size: "> 16"}, because: no such job is planned}
///     expect:
///       - {where: {strategy: ddp}, column: efficiency, at_least: 0.5}
///     cost: {per_device_hour: 2.5, epoch_samples: 1281167}
///     plot:
///       - {file: caps.svg, x: bucket-cap, y: step_time_s, series: world-size, panels: strategy}
///
/// More keys: `clock: yes` adds how long each answer took, one after the other; `every` holds what points assign unless they say otherwise (an option whose value is empty is left
/// away); `values` and `classes` see add_values() and add_classes(); those of studies that run see StudyParts. `like`
/// names another study in the same folder, from which keys are taken that the file does not have.
///
/// For `plot` see study_figure(). `predict` holds options of `stepcast predict`, the same for all points; see expand_points() and expand().
/// A name that is no option must be used in a value. Left out are points that a rule skips, whose division
/// leaves a rest, and those that differ from another only in an option that means nothing there. Points that
/// differ in names alone share a key, and an answer.
/// \param columns that expectations and figures may name
/// \throws InputError that names file, line, key and valid values
/// \param seed of `draw` \param only points of a study that runs whose names have this in them
Study load_study(const std::string& path, const StudyVocabulary& vocabulary,
                 const std::vector<std::string>& columns, unsigned seed = 1, const std::string& only = "");

}  // namespace stepcast
