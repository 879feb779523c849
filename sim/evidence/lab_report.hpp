#pragma once

#include <array>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "records/run_context.hpp"
#include "sim/evidence/case.hpp"

/// How good the predictions of a virtual cluster were: the file that `stepcast lab validate` writes, the
/// goals that it is held to, and what it prints.
namespace stepcast {

inline constexpr const char* kLabSchema = "stepcast.lab/1";

/// Where the time of compute comes from (`Configuration::compute`): waited for as the trace says, or really
/// computed.
inline constexpr std::array<const char*, 2> kLabComputes = {"replayed", "real"};

/// How far a case lies from what was calibrated, by its farthest property: the links' rate and the number of
/// hosts as in the calibration, so that only the training is new; links of another rate; more hosts; links
/// that differ, an oversubscribed uplink, a straggler.
inline constexpr const char *kSeenRateSeenSize = "seen rate, seen size", *kNewRate = "new rate",
                            *kNewWorldSize = "new world size", *kNewTopology = "new topology";
inline constexpr std::array<const char*, 4> kLabDistances = {kSeenRateSeenSize, kNewRate, kNewWorldSize,
                                                             kNewTopology};

/// `2.5 Gbit/s` of 312.5e6.
std::string link_rate_text(double bytes_per_s);

/// `vgg11-bn-cifar, ddp, 5 MiB cap, 4 ranks over star:hosts=4,link=1Gb/s`
std::string describe_in_lab(const Case& one);

struct LabGroup {
  std::string compute;
  std::string distance;
  Errors errors;
};
/// By compute mode, then distance; groups without a case are left out.
std::vector<LabGroup> group_errors(const std::vector<Case>& cases);
/// Of one compute mode.
Errors errors_of(const std::vector<Case>& cases, const std::string& compute);

/// Pairs of strategies that train the same model on the same cluster with the same compute mode, batch and
/// world size, and whose launches do not overlap: the slowest of one is faster than the fastest of the other.
struct StrategyOrder {
  std::size_t pairs = 0;
  std::vector<std::string> wrong;  ///< those that the prediction does not order so
};
StrategyOrder order_of_strategies(const std::vector<Case>& cases);

/// What one change of cluster or strategy does to the step time, as a ratio:
///
///     change = T_changed / T_plain - 1
///
/// The ends of its measured range are what single launches say: fastest changed over slowest plain, and
/// slowest changed over fastest plain.
struct LabPerturbation {
  std::string name;
  double measured_change = 0.0;
  double measured_change_low = 0.0;
  double measured_change_high = 0.0;
  double predicted_change = 0.0;

  /// How far the predicted change is off, as a part of the measured one; infinite when that is none.
  [[nodiscard]] double error() const;
  /// At most 15 % off, or inside the measured range.
  [[nodiscard]] bool within() const;
};
LabPerturbation perturbation_between(const std::string& name, const Case& plain, const Case& changed);

/// What was known before: point-to-point calls between `world_size` hosts at one rate.
struct LabCalibration {
  int world_size = 2;
  double link_rate_bytes_per_s = 0.0;
  double largest_bytes = 0.0;  ///< the longest message that was measured
};

/// The machine beneath the lab: it may be a virtual one, whose host has other guests. Times to copy 1 MiB.
struct LabMachine {
  double calibrated_copy_s = 0.0;
  std::vector<double> copy_s;  ///< while the cases ran, in that order

  /// How much longer the slowest of all these took than the fastest; 0 where none was measured.
  [[nodiscard]] double drift() const;
};
/// Beyond this drift errors are the machine's as well as the forecast's.
inline constexpr double kSteadyMachine = 0.2;

struct LabReport {
  RunContext context;
  LabCalibration calibration;
  LabMachine machine;
  std::vector<Case> cases;
  std::vector<LabPerturbation> perturbations;
};

/// A goal of the laboratory and what became of it: `replayed compute: median absolute error 2.9 % (at most
/// 4.0 %)`.
struct LabGoal {
  std::string text;
  bool met = false;
};
/// Replayed compute: median at most 4 %, 90th percentile at most 10 %, none above 20 % unless inside its
/// range of launches; real compute: median at most 8 %; every perturbation within; no pair of strategies in
/// the wrong order. Goals without a case or perturbation are left out.
std::vector<LabGoal> goals(const LabReport& report);

/// The tables that people read: groups, every case with the worst first, perturbations, order, goals.
std::string to_text(const LabReport& report);

/// What follows from the cases (errors, groups, order, speed-ups) is written for other programs but not read.
void to_json(nlohmann::json& json, const LabReport& report);
/// \throws InputError for an unknown compute mode or distance, or a step time that is not positive.
void from_json(const nlohmann::json& json, LabReport& report);

/// \throws InputError when `path` holds another schema or is not valid.
LabReport load_lab_report(const std::string& path);

}  // namespace stepcast
