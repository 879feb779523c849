#pragma once

#include <string>
#include <vector>

#include "records/bench.hpp"
#include "sim/evidence/case.hpp"

/// From Results to cases: which runs and predictions describe the same training step. The same of benches.
namespace stepcast {

inline constexpr const char* kCompareSchema = "stepcast.compare/1";

ResultFile load_result_file(const std::string& path);

/// Whether both describe the same training step.
bool same_case(const Configuration& a, const Configuration& b);

/// Groups by configuration, in the order of the files, with all errors and trivial predictors. Forecasts of
/// other devices or clusters are other cases. Cases may lack launches or a prediction; they point into
/// `files`.
/// \throws InputError if two predictions describe the same case, or a run is of another device than its
/// prediction (both files are named)
std::vector<Case> group_cases(const std::vector<ResultFile>& files);

/// Checks nothing if the forecast is for the traced device or one of --device-file.
/// \throws InputError naming both files if real compute was measured on another device
void check_device(const Result& measured, const std::string& path, const Result& forecast,
                  const std::string& against);

/// A prediction never descends from what it is compared with.
/// \throws InputError naming both files when `lineage` of the file `prediction` contains `measured`, whose
/// bytes hash to `measured_sha1`.
void refuse_descent(const std::string& prediction, const std::vector<Ancestor>& lineage,
                    const std::string& measured, const std::string& measured_sha1);

/// `refuse_descent` of every prediction from every launch. \pre cases of `group_cases`
void check_lineage(const std::vector<Case>& cases);

/// The same training step, run from its Schedule and by the reference engine: whether the Schedule is what
/// PyTorch does. Medians over the launches of both.
struct EnginePair {
  const Case* schedule = nullptr;
  const Case* reference = nullptr;
  [[nodiscard]] double relative_difference() const;  ///< schedule / reference - 1
  [[nodiscard]] bool ranges_overlap() const;  ///< [fastest, slowest launch] of both have a time in common
  /// Whether all launches of both noted the same layout of buckets, order and bytes; nothing where a launch
  /// noted none.
  [[nodiscard]] std::optional<bool> same_buckets() const;
};

/// One for each case that was run by both.
std::vector<EnginePair> engine_pairs(const std::vector<Case>& cases);

/// The comparison in the schema `stepcast.compare/1`, without context. Without cases there are no medians.
nlohmann::json comparison_json(const std::vector<Case>& cases, const std::vector<Speedup>& speedups,
                               const std::vector<EnginePair>& pairs);
/// The same for people, the worst case first.
std::string comparison_text(const std::vector<Case>& cases, const std::vector<Speedup>& speedups,
                            const std::vector<EnginePair>& pairs);

/// One collective at one size in a measured and a predicted bench file.
struct BenchPair {
  std::string collective;
  double message_bytes = 0.0, measured_s = 0.0, predicted_s = 0.0;
};

/// Rows that both files contain, in the order of the measured file. Rows of 0 s have no relative error and
/// are left out. \throws InputError if no row is shared or the world sizes differ
std::vector<BenchPair> bench_pairs(const Bench& measured, const Bench& predicted);

/// Errors with the size as name and the collective as group.
std::vector<ForecastError> errors_of(const std::vector<BenchPair>& pairs);

nlohmann::json bench_comparison_json(const std::vector<BenchPair>& pairs);

}  // namespace stepcast
