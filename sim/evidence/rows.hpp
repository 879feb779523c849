#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "calibration/fitter.hpp"
#include "core/enum_table.hpp"
#include "core/expression.hpp"
#include "core/yaml.hpp"
#include "sim/evidence/quantities.hpp"

/// Rows: forecast requests with what others measured. One grammar describes rows of tables and rows in the
/// file.
namespace stepcast {

/// Ranks whose step times differ from their median by more than this part do not agree with it.
inline constexpr double kRanksAgree = 0.05;

/// Relative standard deviation of a measurement, and the reason for it.
struct Uncertainty {
  double sigma = 0.0;  ///< 0: not stated
  std::string because{};
};

enum class RowRole : std::uint8_t {
  kFit,      ///< parameters are fitted to it
  kPredict,  ///< forecast with parameters that were fitted to other rows
  kRepeat,   ///< likewise, but its forecast is that of a row to fit: it counts in no summary
};
inline constexpr auto kRowRoles = enum_names<RowRole>("fit", "predict", "repeat");

// NOLINTNEXTLINE(bugprone-exception-escape): moving a json value throws nothing
struct Row {
  std::string name{};      ///< `ddp x4`, `vtrain_single.csv:17`
  std::string where{};     ///< for errors: `studies/published/x.yaml: row 'ddp x4'`
  Assignment values{};     ///< names that options may contain
  Assignment options{};    ///< options of `predict` that differ from the set's
  RowValues measured{};    ///< by quantity one value, or one per rank
  nlohmann::json blind{};  ///< `revision`, and by quantity what was forecast before the measurement was known
  RowRole role = RowRole::kFit;
  std::vector<std::string> fitted_by{};  ///< quantities that a fit uses
  Uncertainty uncertainty{};             ///< if it differs from the set's
  double work = 1.0;                     ///< of a step and GPU, in any unit; baselines scale by it
  /// Rows with one group are plans for the same training on the same GPUs; may be empty.
  std::string group{};
  std::vector<std::string> parts{};  ///< of the set, each summarised separately
  std::string left_out{};            ///< the reason; empty: the row is forecast
  std::string comment{};
  std::optional<double> steps{};  ///< of an epoch; none: computed from the set's epoch

  /// The measured quantity, or the mean of several values. None if it was not measured.
  [[nodiscard]] std::optional<double> number(const std::string& quantity) const;
  /// The mean over the ranks that agree. If three or more ranks report step times, those more than
  /// kRanksAgree from the median are left out: ranks of a synchronous run take equally long, so such a rank
  /// timed something else.
  [[nodiscard]] std::optional<double> agreed(const std::string& quantity) const;
  /// Ranks that agreed() leaves out.
  [[nodiscard]] std::vector<int> ranks_left_out(const std::string& quantity) const;
  /// The quantity that the row is judged by: the first measured one of kRowQuantities; else `step_time_s`.
  [[nodiscard]] std::string leading() const;
};

/// How many steps an epoch has.
struct Epoch {
  std::optional<double> samples{};
  double epochs = 1.0;
};

struct RowSet {
  std::string path{}, title{}, source{}, limits{};
  bool table = false;                 ///< rows come from a table
  std::string sha1{};                 ///< of the file that contains the rows
  Assignment predict{};               ///< options of all rows
  std::vector<FreeParameter> free{};  ///< parameters that are fitted
  std::vector<OpenChoice> open{};     ///< discrete ones
  /// Of a cross-validation; 0: rows to predict are forecast with parameters of the rows to fit.
  int folds = 0;
  std::vector<Row> rows{};
  std::vector<std::string> assumed{};
  Uncertainty uncertainty{0.05, "what the model misses"};
  Epoch epoch{};
  bool global_batch = false;  ///< ranks share one batch

  /// The file's name without its ending.
  [[nodiscard]] std::string id() const { return std::filesystem::path(path).stem().string(); }
  /// An option of a row as it stands in the file; null if it has none.
  [[nodiscard]] const std::string* option(const Row& row, const std::string& name) const;
};

/// Reads a file such as one of these:
///
///     study: GPT on A100
///     source: who measured it, with what
///     rows: vtrain_single.csv                     # next to the file
///     columns: {gpus: "# GPUs"}                   # shorter names for columns
///     patterns: {tensor: {in: title, find: "TP=([0-9]+)", else: 1}}   # a value inside the text of a cell
///     values: {GPU: {a100_80gb: {device: a100-sxm}}}      # a value that assigns several, as in studies
///     classes: {strategy: {pipeline: {stages: "> 1"}, ddp: {}}}
///     predict: {model: "gpt:layers={layers}", batch: "{global/data}", device: "a100-sxm:process={held}"}
///     measured: {step: "{time (ms)}ms", memory: "{max_mem}B"}   # or work: and rate:, whose quotient is the
///                                           # step, or memory alone; of: last, if it is the last rank's
///     work: "{layers*hidden*hidden*global/gpus}"
///     group: "{layers} {gpus} {global}"
///     parts: ["{model}", "{precision}"]                   # summarised apart
///     leave out: [{when: {precision: fp8}, because: fp8 is not modelled}]
///     free: {held: {range: [1GiB, 4GiB], source: ...}}
///     fit: {folds: 5}                             # or when: {gpus: "<= 8"}
///     assumed: [what the source leaves open]
///
///     study: MLP over Gloo
///     source: a report
///     predict: {model: netflix-mlp, strategy: ddp, phase-times: "host={host}",
///               cluster: "laptop:cores={cores}"}
///     free:
///       host: {range: [1ms, 10ms], scale: linear, limits: [0ms, 1s], source: a step without communication}
///     open:
///       micro-batches: {to: 64, source: not stated}            # every whole number from 1
///       schedule: {values: [gpipe, 1f1b], source: not stated}
///     sigma: {value: 1%, because: two runs differ by as much}
///     epoch: {samples: 50000, epochs: 5}
///     rows:
///       - {name: ddp x2, use: fit, options: {world-size: 2}, with: {cores: 6},
///          measured: {total_time_s: 443}}
///       - {name: ddp x4, use: predict, options: {world-size: 4}, with: {cores: 6},
///          measured: {total_time_s: 300},
///          blind: {revision: e418a42, total_time_s: 310, range: [290, 330]}}
///       - {name: ddp x4 8 cores, use: repeat, options: {world-size: 4}, with: {cores: 8},
///          measured: {total_time_s: 299}}
///
/// Expressions in options (core/expression.hpp) may contain parameters, choices, `with` or columns, and the
/// row's own options; {shipped} is the folder of shipped files. A row in the file is fitted by its first
/// quantity unless `fit` lists others, and may have a `sigma` of its own. In tables, empty cells have no
/// value.
///
/// A CSV file alone has columns named like options of `predict`, and `step` with a unit; `memory`, `group`
/// and `work` are optional.
/// \param rows path of another part of the same table; empty: the file's own
/// \throws InputError that names file, line, key, value and valid values
RowSet read_rows(const std::string& path, const std::string& rows = "");

/// Reads `{range: [0.2ms, 60ms], scale: linear, limits: [0ms, 1s], source: ...}`.
FreeParameter free_parameter(const std::string& name, const YamlNode& node);

/// Names and paths of the sets in studies/measured.
std::vector<std::string> measured_ids();
std::string measured_path(const std::string& id);

/// The sets in studies/published, and after them the file `more` (may be empty), which replaces a shipped set
/// of the same name.
std::vector<RowSet> load_published(const std::string& more);

/// The options of a row as words of a command line.
/// \param fitted values of parameters and choices; empty: nothing is fitted, a device without its settings
/// \throws InputError that names row and option
std::vector<std::string> words_of(const RowSet& set, const Row& row, const Assignment& fitted);

}  // namespace stepcast
