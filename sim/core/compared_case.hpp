#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "sim/core/compare.hpp"

/// One case of a comparison in numbers, as files keep it: without the Results that it came from.
namespace stepcast {

struct ComparedLaunch {
  std::string path;
  std::string sha1;
  std::string date;
  double load_average = 0.0;
  double step_time_s = 0.0;
};

struct ComparedCase {
  std::string model;
  std::string strategy;
  int world_size = 1;
  int batch = 0;          ///< per rank; of a pipeline, per pipeline
  int data_parallel = 1;  ///< batches per step
  int micro_batches = 1;
  int threads = 1;
  std::map<std::string, std::string> options;  ///< of the strategy
  double measured_step_time_s = 0.0;           ///< median over the launches
  double measured_low_s = 0.0;                 ///< fastest launch
  double measured_high_s = 0.0;                ///< slowest launch
  double predicted_step_time_s = 0.0;
  std::map<std::string, double> trivial_step_time_s;  ///< see trivial_predictions()
  std::vector<PhaseError> phases;
  std::vector<MemoryError> memory;
  std::vector<ComparedLaunch> launches;
  std::string prediction_path;
  std::string prediction_sha1;

  [[nodiscard]] double relative_error() const;     ///< predicted / measured - 1
  [[nodiscard]] bool inside_launch_range() const;  ///< low <= predicted <= high
};

/// `all` holds the cases that the trivial predictor `nearest_measured` may copy from.
/// \pre `one` has launches and a prediction
ComparedCase compared(const Case& one, const std::vector<Case>& all);

/// Trivial predictors that came closer to the measured time than the prediction did, each with its signed
/// error.
std::map<std::string, double> better_trivial_predictors(const ComparedCase& one);

void to_json(nlohmann::json& json, const ComparedCase& one);
/// What follows from other keys (errors, `better`) is not read but computed again.
void from_json(const nlohmann::json& json, ComparedCase& one);

}  // namespace stepcast
