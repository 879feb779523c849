#pragma once

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/registry.hpp"
#include "core/table.hpp"
#include "models/model.hpp"
#include "sim/records/result.hpp"
#include "sim/validation/published.hpp"

/// Predictions of published cases: a model of each experiment, fitted on its rows of role `fit` only,
/// replayed for every row. Where the source leaves something open, everything plausible is tried, and the
/// prediction is a range.
namespace stepcast {

/// MB in the sources is 2^20 bytes: torch's max_memory_allocated() divided by 1024^2, as everybody prints it.
/// The published peaks agree: four ranks differ by 0.50 MB, which is half a MiB to the digit, while 500,000
/// bytes are no multiple of the 512 bytes that the allocator rounds to.
inline constexpr double kPublishedMegabyte = kMebi;

/// Quantities of one row under one set of assumptions, by their key: `step_time_s`; several values are per
/// rank.
using RowValues = std::map<std::string, std::vector<double>>;

/// One set of values for what the source leaves open, that reproduces the fit rows, and what it predicts.
struct Candidate {
  std::vector<std::pair<std::string, std::string>> choice;  ///< {"micro_batches", "32"}, ...
  double implausibility = 0.0;                              ///< the least one gives the central prediction
  std::string fitted;                                       ///< the costs that were fitted, for people
  std::vector<RowValues> rows;                              ///< as the case's rows
  /// The other figure of a source that contradicts itself, where this set reproduces that, not the fit row's:
  /// `the source's chart (204.2 s) for ddp x2`; else "".
  std::string takes{};
  /// What a rank alone plus uncontended alpha-beta communication says, as `rows`; empty where it is not
  /// known.
  std::vector<RowValues> alpha_beta{};
};

/// The central prediction and the smallest and largest of all candidates.
struct PredictedValue {
  std::vector<double> central, low, high;
};

struct CasePrediction {
  std::vector<std::map<std::string, PredictedValue>> rows;  ///< as the case's rows; none where not predicted
  std::string not_predicted;                                ///< the reason, or ""
  std::vector<std::string> assumed;
  std::vector<std::string> unidentified;  ///< what stays open, and how the answer changes with it
  std::vector<RowValues> alpha_beta;      ///< of the central prediction; empty where it is not known
  /// What the fit rows cannot say, in one sentence; the reason where a trivial predictor wins.
  std::string limits;
};

struct CasePredictor {
  /// \throws InputError that names the row when a case lacks what the fit needs
  std::function<CasePrediction(const PublishedCase&)> predict;
};

/// Keyed by the id of the published case; a person's own case names one by `like`.
Registry<CasePredictor>& case_predictors();

/// By the registry; a case without a predictor is `not_predicted`, with the reason.
CasePrediction predict_case(const PublishedCase& published);

/// The central candidate, ranges, over how many sets of which how many take another figure of the source, and
/// one line per choice that takes more than one value. No candidate: not predicted.
CasePrediction combine(const PublishedCase& published, const std::vector<Candidate>& candidates);

/// What the rows of role `predict` are predicted to be, on one line. \pre candidates not empty
std::string summary(const PublishedCase& published, const std::vector<const Candidate*>& candidates);

/// Takes the memory out of predictions whose fit rows say nothing of it.
void forget_memory(std::vector<Candidate>& candidates);

/// The case's model (BERT-base unless it says otherwise) with settings; words behind its name are for people.
/// \throws InputError that names the case
Model published_model(const PublishedCase& published, const std::string& settings);

/// The first row of role fit and this strategy that has a value above 0.
/// \throws InputError that names the case
const PublishedRow& fit_row(const PublishedCase& published, const std::string& strategy,
                            const std::string& key);

/// \throws InputError that names the row when its strategy is none of these, or `single` on several ranks
void require_strategy(const PublishedRow& row, const std::vector<std::string>& known);

/// Step time, throughput, peak memory, unevenness and bubble of a replay.
/// \param process_bytes that every rank holds besides
RowValues row_values(const Result& result, double process_bytes);

/// Predicted over measured - 1 of the mean over the ranks (`PublishedRow::measured`); nothing where the row
/// has no such value.
std::optional<double> relative_error(const PublishedRow& row, const std::string& key,
                                     const PredictedValue& value);

/// The quantity by which a row is judged: throughput, else step time, else what else it has.
std::string leading_quantity(const PublishedRow& row);

/// `ddp x4`, `pipeline x4 6-2-2-2`, `ddp x2 8 cores`
std::string row_name(const PublishedRow& row);

double mean_of(const std::vector<double>& values);

/// `748.5 to 752.1`, or `748.5` where that is the same on paper; one per rank with ` | ` between.
std::string range_text(const PredictedValue& value);

}  // namespace stepcast
