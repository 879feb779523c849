#pragma once

#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "sim/study/expectation.hpp"
#include "sim/study/figures.hpp"

/// A study: many calls of `stepcast predict`, described by one file.
namespace stepcast {

/// One call.
struct StudyPoint {
  Assignment assigned;  ///< values of all names, including those that are not options
  Assignment options;   ///< of the command line, by `--strategy`; switches have an empty value
  std::string key;      ///< the options as sorted words: equal calls have equal keys
  std::string name{};   ///< of its files; empty if the study does not run
  std::string model{};  ///< the model of one rank, with the degrees of the mesh that divide its layers

  /// {"--strategy", "ddp", ...}
  [[nodiscard]] std::vector<std::string> words() const;
};

/// Points that are left out for one reason.
struct LeftOut {
  std::string reason;
  std::size_t points = 0;
  std::vector<std::string> names{};  ///< of the points, in studies that run
};
/// Adds a point to those of that reason. \param name may be empty
void leave_out(std::vector<LeftOut>& all, const std::string& reason, const std::string& name);

struct SkipRule {
  Condition when;
  std::string because;
};

/// Number of steps so that a run takes about `seconds` of the predicted step time.
struct StepsRule {
  double seconds = 1.0;
  int at_least = 1, at_most = 1'000'000;
};

/// A figure of `stepcast plot`, from the predictions and runs of some points.
struct EvidenceFigure {
  std::string figure, file;
  std::vector<std::string> words{};  ///< more options of `stepcast plot`
  std::optional<Condition> where{};
  bool with_baselines = false, one_launch = false;
};

/// How points run: options of `stepcast run` in addition to those of the point's training.
struct RunPart {
  Assignment options{};
  std::string lab{};  ///< cluster of a virtual cluster; may contain expressions, may be empty
  int launches = 3;
  int least_launches = 1;                                    ///< launches that also begin after `until_s`
  double until_s = std::numeric_limits<double>::infinity();  ///< of the whole study
  std::optional<StepsRule> steps{};
  std::vector<SkipRule> skip{};  ///< by predicted columns
};

/// The parts of a study whose points are run: what is measured before, how points run, what is compared.
///
///     name: "{way}.{world-size}"       # of a point's files
///     calibrate: {nproc: 2}            # options of `stepcast calibrate`; `lab` is a virtual cluster
///     measure: {steps: 15, rounds: 2}  # options of `stepcast measure`, for each model of the points at
///                                      # every batch and micro-batch; each round measures all models
///     bench: {nproc: 2, max: 16MiB}    # options of `stepcast bench`; compared with its prediction
///     run: {nproc: "{world-size}", launches: 3, lab: ..., at_least: 2, until: 600s,
///           steps: {seconds: 1.5, at_least: 4, at_most: 30},
///           skip: [{when: {step_time_s: "> 1"}, because: ...}]}
///     compare: {groups: [way], figures: [{figure: accuracy, file: accuracy.svg}]}
struct StudyParts {
  std::string name{};
  std::optional<Assignment> calibrate{}, measure{}, bench{};
  std::string calibrate_lab{};
  int measure_rounds = 1;
  RunPart run{};
  std::optional<Condition> first{};  ///< points that are predicted, run once and compared before all others
  std::optional<Condition> baseline{};  ///< points that only serve as baselines of speed-ups
  std::vector<std::string> groups{};    ///< names by whose values errors are summarised
  std::vector<EvidenceFigure> figures{};
};

/// For columns of costs.
struct StudyCost {
  std::optional<double> per_device_hour{};  ///< in any currency
  std::optional<double> epoch_samples{};
};

struct Study {
  std::string title;
  std::string about;  ///< longer description; may be empty
  std::string path;
  std::vector<std::string> names;  ///< that points assign, in the file's order; columns of the results
  std::vector<StudyPoint> points;
  std::vector<LeftOut> left_out;
  std::vector<Expectation> expectations;
  bool clock = false;  ///< rows contain the time of their forecasts
  bool draws = false;  ///< points are random
  StudyCost cost;
  std::vector<StudyFigure> figures;
  std::optional<StudyParts> parts;  ///< none: the study only predicts
};

/// Options of the program that predicts the points.
struct StudyVocabulary {
  std::vector<std::string> options;   ///< names without dashes
  std::vector<std::string> switches;  ///< options without a value
  /// Whether an option has an effect with the point's other values: `bucket-cap` has one for `ddp` only.
  std::function<bool(const std::string& option, const Assignment& point)> matters;
  /// StudyPoint::model; null: the point's `model`.
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
/// `predict` holds options of `stepcast predict` for all points. More keys: `clock: yes` measures the time of
/// each forecast, one after the other. `every` holds values of points that do not assign others; an empty
/// value omits the option. `values` and `classes`: see add_values() and add_classes(). `plot`: see
/// study_figure(). Keys of studies that run: see StudyParts. `like` names another study in the same folder;
/// keys that are missing are read from it.
///
/// A name that is not an option must be used in an expression. Left out are points that a rule skips, whose
/// division leaves a remainder, and those that differ from another only in an option without effect. Points
/// that differ in other names only share a key and an answer. \param seed of `draw` \param only points of a
/// study that runs whose names contain this \throws InputError that names file, line, key and valid values
Study load_study(const std::string& path, const StudyVocabulary& vocabulary, unsigned seed = 1,
                 const std::string& only = "");

/// All combinations of one element of each block of a list:
///
///     - grid: {strategy: [ddp, fsdp], world-size: [2, 4, 8]}     # 6 elements
///     - zip: {rate: [1GB/s, 10GB/s], latency: [50us, 5us]}       # 2 elements
///     - list: [{batch: 8}, {batch: [16, 32], threads: 2}]        # 3 elements: each a grid of its own
///     - cases: {link: {nvlink: {cluster: h100x8-hgx}, pcie: {cluster: h100x8-pcie}}}   # 2, named
///     - draw: {points: 20, from: {batch: [8, 16], rate: {log_uniform: [50Mb/s, 5Gb/s]}}}   # 20, at random
///
/// Blocks must not assign the same name. Draws are uniform over a list. `log_uniform` draws uniformly over
/// the logarithms between two quantities of one unit, with three digits. \param seed of the draws \throws
/// InputError that names file, line and key
std::vector<Assignment> expand_points(const YamlNode& blocks, unsigned seed);

}  // namespace stepcast
