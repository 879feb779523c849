#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "sim/study/figures.hpp"
#include "sim/study/points.hpp"

/// A study: questions to `stepcast predict`, told by one file.
namespace stepcast {

/// One question.
struct StudyPoint {
  Assignment assigned;             ///< what the file assigns, names of its own included
  std::vector<std::string> words;  ///< of the command line: {"--strategy", "ddp", ...}
  std::string key;                 ///< the same words, sorted: equal questions have equal keys
};

/// Points that are left out, and why.
struct LeftOut {
  std::string reason;
  std::size_t points = 0;
};

/// What a column must be, of all points where `where` holds.
struct Expectation {
  std::string text;  ///< as in the file, for people
  std::optional<Condition> where;
  std::string column;
  std::optional<double> at_least, at_most;
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
  StudyCost cost;
  std::vector<StudyFigure> figures;
};

/// What a study may say to the program that answers it.
struct StudyVocabulary {
  std::vector<std::string> options;   ///< names without dashes
  std::vector<std::string> switches;  ///< those of them that take no value
  /// Whether an option means something beside what else a point says: `bucket-cap` does to `ddp` alone.
  std::function<bool(const std::string& option, const Assignment& point)> matters;
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
/// For `plot` see study_figure(). `predict` holds options of `stepcast predict`, the same for all points; see expand_points() and fill_in().
/// A name that is no option must be used in a value. Left out are points that a rule skips, whose division
/// leaves a rest, and those that differ from another only in an option that means nothing there. Points that
/// differ in names alone share a key, and an answer.
/// \param columns that expectations and figures may name
/// \throws InputError that names file, line, key and valid values
Study load_study(const std::string& path, const StudyVocabulary& vocabulary,
                 const std::vector<std::string>& columns);

}  // namespace stepcast
