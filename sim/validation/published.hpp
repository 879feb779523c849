#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "calibration/fitter.hpp"
#include "core/yaml.hpp"

/// Published measurements of distributed training as data: what others measured, what of it a prediction may use, and what
/// the source leaves open.
namespace stepcast {

/// By how much of their median step times of ranks may miss it and still agree with it.
inline constexpr double kRanksAgree = 0.05;

/// Names and texts in the order of the file.
using Texts = std::vector<std::pair<std::string, std::string>>;

/// One row: a question to `stepcast predict` beside what was measured.
// NOLINTNEXTLINE(bugprone-exception-escape): moving a json value throws nothing
struct PublishedRow {
  std::string name;         ///< `ddp x4`
  std::string where;        ///< `studies/published/x.yaml: row 'ddp x4'`
  Texts options;            ///< that differ from the case's
  Texts with;               ///< names of its own that options may use: `cores`
  nlohmann::json measured;  ///< by quantity a number, or one per rank
  nlohmann::json blind;  ///< `revision`, and by quantity what was forecast before the measurement was known
  std::vector<std::string> on;  ///< quantities that a fit uses
  std::optional<double> sigma;  ///< where the source is less sure of it than of the case
  std::string sigma_because;
  bool fit = false;
  std::string comment;
  std::string strategy;
  int world_size = 0;           ///< 0: the row says none
  std::optional<double> steps;  ///< of an epoch; else from the case's `epoch`

  /// The measured quantity; several values are their mean. Nothing where it was not measured.
  [[nodiscard]] std::optional<double> number(const std::string& quantity) const;
  /// The same of the ranks that agree within kRanksAgree of the median, of at least three that report steps: ranks of a
  /// synchronous run take equally long, and one that says otherwise has timed something else.
  [[nodiscard]] std::optional<double> agreed(const std::string& quantity) const;
  /// Numbers of the ranks that `agreed` leaves out.
  [[nodiscard]] std::vector<int> ranks_left_out(const std::string& quantity) const;
  /// The first known quantity that it measures; `step_time_s` where there is none.
  [[nodiscard]] std::string leading() const;
};

/// A parameter with the unit in which it stands in options.
struct PublishedParameter {
  FreeParameter parameter;
  std::string unit;  ///< `GB/s`, or ""
  std::string source;
};

/// `{range: [0.2ms, 60ms], scale: linear, limits: [0ms, 1s], source: ...}` \throws InputError that names file, line and key
PublishedParameter parameter_of(const std::string& name, const YamlNode& node);

struct PublishedChoice {
  OpenChoice choice;
  std::string source;
};

struct PublishedCase {
  std::string id;  ///< the file's name without `.yaml`
  std::string path;
  std::string title, source, limits;
  Texts predict;  ///< options of all rows
  std::vector<PublishedParameter> free;
  std::vector<PublishedChoice> open;
  std::vector<PublishedRow> rows;
  std::vector<std::string> assumed;
  double sigma = 0.01;  ///< relative standard deviation of what was measured
  std::string sigma_because;
  std::optional<double> samples;  ///< of an epoch
  double epochs = 1.0;
  bool global_batch = false;  ///< ranks share one batch
};

/// Reads a file such as
///
///     study: MLP over Gloo
///     source: a report
///     predict: {model: netflix-mlp, strategy: ddp, batch: 64, phase-times: "host={host}", cluster: "laptop:cores={cores}"}
///     free:
///       host: {range: [1ms, 10ms], source: a step without communication}
///     open:
///       micro-batches: {to: 64, source: not stated}            # each whole number from 1
///       schedule: {values: [gpipe, 1f1b], source: not stated}
///     sigma: {value: 1%, because: two runs differ by as much}
///     epoch: {samples: 50000, epochs: 5}
///     rows:
///       - {name: ddp x2, use: fit, options: {world-size: 2}, with: {cores: 6}, measured: {total_time_s: 443.12}}
///       - {name: ddp x4, use: predict, options: {world-size: 4}, with: {cores: 6}, measured: {total_time_s: 300},
///          blind: {revision: e418a42, total_time_s: 310, range: [290, 330]}}
///
/// `{...}` in an option is a sum of products of parameters, choices, `with` and the row's options; {shipped} is the folder of
/// shipped files. A row is fitted by its first quantity unless `fit` lists others, and may have a `sigma` of its own.
/// \throws InputError that names file, line, key, value and valid values
PublishedCase read_published(const std::string& path);

/// studies/published/*.yaml, and after them the file `more` ("": none), which takes the place of the shipped case with its
/// id.
std::vector<PublishedCase> load_published(const std::string& more);

/// A number with a unit behind it, or a word.
struct NamedValue {
  double number = 0.0;
  std::string unit;
  std::string word;  ///< as it stands, where it was not fitted
};

/// An option's text with every `{...}` as its value.
/// \throws InputError for an unknown name (with the nearest), and where a sum has two units
std::string filled(const std::string& text, const std::map<std::string, NamedValue>& names);

/// `25GB/s` as 25 and `GB/s`, `gpipe` as a word. A number may stand alone.
NamedValue named_value(const std::string& text);

}  // namespace stepcast
