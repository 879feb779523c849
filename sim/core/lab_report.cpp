#include "sim/core/lab_report.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <limits>
#include <tuple>

#include "sim/core/statistics.hpp"
#include "sim/core/table.hpp"
#include "sim/core/units.hpp"

namespace stepcast {
namespace {

constexpr double kReplayedMedian = 0.04, kReplayedP90 = 0.10, kReplayedWorst = 0.20, kRealMedian = 0.08;
constexpr double kChange = 0.15;  // of the change itself

ErrorSummary summarize(const std::vector<double>& errors) {
  if (errors.empty()) return {};
  return {errors.size(), median(errors), quantile(errors, 0.9), quantile(errors, 1.0)};
}

}  // namespace

std::string to_text(LabCompute compute) { return compute == LabCompute::kReplayed ? "replayed" : "real"; }

std::string to_text(LabDistance distance) {
  switch (distance) {
    case LabDistance::kSeenRateSeenSize:
      return "seen rate, seen size";
    case LabDistance::kNewRate:
      return "new rate";
    case LabDistance::kNewWorldSize:
      return "new world size";
    case LabDistance::kNewTopology:
      break;
  }
  return "new topology";
}

std::string link_rate_text(double bytes_per_s) {
  constexpr double kBits = 8.0;
  const double bits = kBits * bytes_per_s;
  const bool giga = bits >= 1e9;
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.3g %s", bits / (giga ? 1e9 : 1e6), giga ? "Gbit/s" : "Mbit/s");
  return text.data();
}

double LabMachine::drift() const {
  std::vector<double> all = copy_s;
  if (calibrated_copy_s > 0.0) all.push_back(calibrated_copy_s);
  if (all.empty()) return 0.0;
  return quantile(all, 1.0) / quantile(all, 0.0) - 1.0;
}

namespace {

double speedup(const LabCase& one, double step_time_s) {
  if (one.baseline_step_time_s <= 0.0) return std::numeric_limits<double>::quiet_NaN();
  return one.data_parallel * one.baseline_step_time_s / step_time_s;
}

}  // namespace

double LabCase::measured_speedup() const { return speedup(*this, measured_step_time_s); }
double LabCase::predicted_speedup() const { return speedup(*this, predicted_step_time_s); }

std::string describe(const LabCase& one) {
  return one.model + ", " + one.strategy_text + ", " + std::to_string(one.world_size) +
         (one.world_size == 1 ? " rank over " : " ranks over ") + one.cluster;
}

ErrorSummary summarize(const std::vector<LabCase>& cases, LabCompute compute) {
  std::vector<double> errors;
  for (const LabCase& one : cases)
    if (one.compute == compute) errors.push_back(std::abs(one.relative_error()));
  return summarize(errors);
}

std::vector<LabGroup> group_errors(const std::vector<LabCase>& cases) {
  std::vector<LabGroup> groups;
  for (const LabCompute compute : kLabComputes)
    for (const LabDistance distance : kLabDistances) {
      std::vector<double> errors;
      for (const LabCase& one : cases)
        if (one.compute == compute && one.distance == distance)
          errors.push_back(std::abs(one.relative_error()));
      if (!errors.empty()) groups.push_back({compute, distance, summarize(errors)});
    }
  return groups;
}

bool within_bar(const ComparedCase& one, double bar) {
  return std::abs(one.relative_error()) <= bar || one.inside_launch_range();
}

StrategyOrder order_of_strategies(const std::vector<LabCase>& cases) {
  const auto circumstances = [](const LabCase& c) {
    return std::tie(c.model, c.cluster, c.compute, c.batch, c.world_size, c.threads);
  };
  StrategyOrder order;
  for (const LabCase& faster : cases)
    for (const LabCase& slower : cases) {
      if (circumstances(faster) != circumstances(slower)) continue;
      if (faster.measured_high_s >= slower.measured_low_s) continue;
      ++order.pairs;
      if (faster.predicted_step_time_s < slower.predicted_step_time_s) continue;
      order.wrong.push_back(describe(faster) + " (" + to_text(faster.compute) + ") is faster than " +
                            slower.strategy_text + ": measured " +
                            to_text(Seconds(faster.measured_step_time_s)) + " and " +
                            to_text(Seconds(slower.measured_step_time_s)) + ", predicted " +
                            to_text(Seconds(faster.predicted_step_time_s)) + " and " +
                            to_text(Seconds(slower.predicted_step_time_s)));
    }
  return order;
}

double LabPerturbation::error() const {
  const double difference = predicted_change - measured_change;
  return difference == 0.0 ? 0.0 : difference / std::abs(measured_change);
}
double LabPerturbation::spread() const { return measured_change_high - measured_change_low; }
bool LabPerturbation::within() const {
  return std::abs(error()) <= kChange ||
         (measured_change_low <= predicted_change && predicted_change <= measured_change_high);
}

LabPerturbation perturbation_between(const std::string& name, const ComparedCase& plain,
                                     const ComparedCase& changed) {
  return {name, changed.measured_step_time_s / plain.measured_step_time_s - 1.0,
          changed.measured_low_s / plain.measured_high_s - 1.0,
          changed.measured_high_s / plain.measured_low_s - 1.0,
          changed.predicted_step_time_s / plain.predicted_step_time_s - 1.0};
}

namespace {

LabGoal at_most(const std::string& what, double value, double limit) {
  return {what + " " + percent_text(value) + " (at most " + percent_text(limit) + ")", value <= limit};
}

/// `12 of 12`: all must be.
LabGoal all_of(const std::string& what, std::size_t good, std::size_t all) {
  return {what + ": " + std::to_string(good) + " of " + std::to_string(all), good == all};
}

}  // namespace

std::vector<LabGoal> goals(const LabReport& report) {
  std::vector<LabGoal> result;
  const ErrorSummary replayed = summarize(report.cases, LabCompute::kReplayed);
  if (replayed.cases > 0) {
    result.push_back(at_most("replayed compute: median absolute error", replayed.median, kReplayedMedian));
    result.push_back(at_most("replayed compute: 90th percentile", replayed.p90, kReplayedP90));
    const auto good = std::count_if(report.cases.begin(), report.cases.end(), [](const LabCase& one) {
      return one.compute == LabCompute::kReplayed && within_bar(one, kReplayedWorst);
    });
    result.push_back(all_of("replayed compute: cases at most " + percent_text(kReplayedWorst) +
                                " off or inside their range of launches",
                            static_cast<std::size_t>(good), replayed.cases));
  }
  const ErrorSummary real = summarize(report.cases, LabCompute::kReal);
  if (real.cases > 0)
    result.push_back(at_most("real compute: median absolute error", real.median, kRealMedian));
  if (!report.perturbations.empty()) {
    const auto good = std::count_if(report.perturbations.begin(), report.perturbations.end(),
                                    [](const LabPerturbation& one) { return one.within(); });
    result.push_back(all_of("perturbations whose change is at most " + percent_text(kChange) +
                                " of itself off or inside its range",
                            static_cast<std::size_t>(good), report.perturbations.size()));
  }
  const StrategyOrder order = order_of_strategies(report.cases);
  const auto pairs = static_cast<std::size_t>(order.pairs);
  if (pairs > 0)
    result.push_back(all_of("pairs of strategies in the measured order", pairs - order.wrong.size(), pairs));
  return result;
}

}  // namespace stepcast
