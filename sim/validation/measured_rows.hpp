#pragma once

#include <map>
#include <string>
#include <vector>

#include "sim/study/points.hpp"
#include "sim/validation/published.hpp"

/// Tables of steps that others measured, each row a question to `stepcast predict`.
namespace stepcast {

struct MeasuredRow {
  std::string name;      ///< `vtrain_single.csv:17`
  Assignment values;     ///< of the columns, and what follows from them, those that options name
  double step_s = 0.0;   ///< measured
  double memory = 0.0;   ///< bytes of the fullest GPU, or of the last one; 0: not measured
  double work = 1.0;     ///< of a step and GPU, in whatever unit; for trivial predictors
  std::string group;     ///< rows of one group differ in how they do the same on the same GPUs
  std::string part;      ///< of the set, that is summed up on its own too
  std::string left_out;  ///< why; "": it counts
  bool known = true;     ///< parameters may be fitted to it
};

/// A set of rows.
struct MeasuredSet {
  std::string id{};  ///< the file's name without its ending
  std::string path{}, title{}, source{};
  Texts predict{};  ///< options, with {columns} and {parameters}
  std::vector<PublishedParameter> free{};
  int folds = 0;  ///< of a cross-validation; 0: rows that are not `known` are forecast from those that are
  bool memory_of_last = false;  ///< rank, else of the fullest
  std::vector<MeasuredRow> rows{};
  std::vector<std::string> assumed{};
};

/// Reads a file such as
///
///     study: GPT on A100
///     source: who measured it, with what
///     rows: vtrain_single.csv                     # beside it
///     columns: {gpus: "# GPUs"}                   # shorter names for columns
///     patterns: {tensor: {in: title, find: "TP=([0-9]+)", else: 1}}   # a value that stands in the words of a cell
///     values: {GPU: {a100_80gb: {device: a100-sxm}}}      # a value stands for several, as in studies
///     classes: {strategy: {pipeline: {stages: "> 1"}, ddp: {}}}
///     predict: {model: "gpt:layers={layers}", batch: "{global/data}", device: "a100-sxm:compute_efficiency={reached}"}
///     measured: {step: "{time (ms)}ms", memory: "{max_mem}B"}     # or work: and rate:, whose quotient is the step;
///                                                                  # of: last, where memory is the last rank's
///     work: "{layers*hidden*hidden*global/gpus}"
///     group: "{layers} {gpus} {global}"
///     parts: "{model}"
///     leave out: [{when: {precision: fp8}, because: fp8 is not modelled}]
///     free: {reached: {range: [0.5, 0.95], source: ...}}
///     fit: {folds: 5}                             # or when: {gpus: "<= 8"}
///     assumed: [what the source leaves open]
///
/// A CSV file alone has columns that are called as options of `predict`, and `step`, with a unit; `memory`, `group` and
/// `work` may stand beside them. Empty cells say nothing.
/// \param rows in place of the file's: another part of the same table
/// \throws InputError that names file, line, key, value and valid values
MeasuredSet read_measured(const std::string& path, const std::string& rows = "");

/// studies/measured/*.yaml, and their ids.
std::vector<std::string> measured_ids();
std::string measured_path(const std::string& id);

/// The options of a row with parameters at these values, as words of a command line. \throws InputError
std::vector<std::string> words_of(const MeasuredSet& set, const MeasuredRow& row,
                                  const std::map<std::string, double>& parameters);

}  // namespace stepcast
