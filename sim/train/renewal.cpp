#include <algorithm>
#include <boost/math/distributions/poisson.hpp>
#include <cmath>

#include "core/ranges.hpp"
#include "sim/train/timeline.hpp"

namespace stepcast {
namespace {

/// Rates and means of all interruptions.
struct Recoveries {
  double failures = 0.0, planned = 0.0;  ///< rates
  double failure_s = 0.0;                ///< E[recovery] of a failure
  double planned_s = 0.0;                ///< rate-weighted sum of stops and restarts
  [[nodiscard]] double all() const { return failures + planned; }
};

/// Mean of the latest of `hosts` repairs.
double latest_repair_s(const Interruption& one) {
  double harmonic = 0.0;
  for (int i = 1; i <= one.hosts; ++i) harmonic += 1.0 / i;
  return one.repair_s * harmonic;
}

Recoveries recoveries_of(const TrainingCase& training) {
  Recoveries sum;
  for (const Interruption& one : training.interruptions)
    (one.planned ? sum.planned : sum.failures) += one.rate;
  double phi = 0.0, wait = 0.0;
  for (const Interruption& one : training.interruptions) {
    if (one.planned || sum.failures <= 0.0) continue;
    const double share = one.rate / sum.failures;
    phi += share * std::exp(-sum.failures * (one.detection_s + one.restart_s));
    if (training.spares == 0) wait += share * latest_repair_s(one);
  }
  if (sum.failures > 0.0) sum.failure_s = (wait + (1.0 - phi) / sum.failures) / phi;
  const CheckpointCost& save = training.checkpoint;
  for (const Interruption& one : training.interruptions) {
    if (!one.planned) continue;
    const double fails = -std::expm1(-sum.failures * one.restart_s);
    sum.planned_s += one.rate * (save.stall_s + save.write_s + one.stop_s + fails * sum.failure_s +
                                 (sum.failures > 0.0 ? fails / sum.failures : one.restart_s));
  }
  return sum;
}

/// Mean rate of training with slow hosts: the slowest of those present counts.
double mean_speed(std::vector<SlowEpisodes> slow) {
  std::ranges::sort(slow, std::greater(), &SlowEpisodes::slowdown);
  double speed = 1.0, none_slower = 1.0;
  for (const SlowEpisodes& one : slow) {
    const double absent = std::exp(-one.rate * one.duration_s);
    speed -= one.slowdown * none_slower * (1.0 - absent);
    none_slower *= absent;
  }
  return speed;
}

double rate_of(const TrainingCase& training) {
  const CheckpointCycle cycle(training);
  const Recoveries recoveries = recoveries_of(training);
  const double speed = mean_speed(training.slow);
  const double rate = recoveries.all() / speed;  // per second of undisturbed training
  const double write = training.checkpoint.write_s, slow = training.checkpoint.slowdown;
  if (rate <= 0.0) return speed * cycle.work_s / cycle.length_s();
  const double cycles = std::exp(-rate * cycle.first_s()) / -std::expm1(-rate * cycle.length_s());
  const double writing = -std::expm1(-rate * write) / rate;
  const double rest = (std::exp(-rate * write) - std::exp(-rate * (cycle.length_s() - cycle.stall_s))) / rate;
  const double begun = -std::expm1(-rate * cycle.work_s) / rate + cycles * ((1.0 - slow) * writing + rest);
  const double kept = cycle.work_s * cycles * std::exp(-rate * write);
  const double useful = (recoveries.failures * kept + recoveries.planned * begun) / recoveries.all();
  return useful /
         ((1.0 + recoveries.failures * recoveries.failure_s + recoveries.planned_s) / recoveries.all());
}

/// Mean number of hosts in repair.
double mean_in_repair(const TrainingCase& training) {
  return sum_of(training.interruptions,
                [](const Interruption& one) { return one.rate * one.hosts * one.repair_s; });
}

std::string obstacle_of(const TrainingCase& training) {
  constexpr double kRare = 1e-3;
  if (training.checkpoint.storage_every > 0) return "checkpoints have two levels";
  if (training.elasticity != Elasticity::kNone) return "replicas are elastic";
  if (training.interval >= training.steps && recoveries_of(training).planned > 0.0)
    return "planned stops divide the only interval";
  const double mean = mean_in_repair(training);
  const bool lacks =
      std::ranges::any_of(training.interruptions, [&](auto& one) { return one.hosts > training.spares; });
  if (training.spares > 0 && mean > 0.0 &&
      (lacks || cdf(complement(boost::math::poisson(mean), training.spares - 1)) > kRare))
    return "spares may run out";
  return "";
}

}  // namespace

Renewal renewal_of(const TrainingCase& training) {
  Renewal result{.obstacle = obstacle_of(training), .useful_rate = rate_of(training)};
  const CheckpointCost& last = training.checkpoint;  // async: the training ends with the write of the last
  result.wall_s = training.useful_s() / result.useful_rate + last.write_s;
  return result;
}

double best_interval(const TrainingCase& training) {
  const auto rate = [&](double interval) {
    TrainingCase one = training;
    one.interval = interval;
    return rate_of(one);
  };
  const CheckpointCost& cost = training.checkpoint;
  const double least =
      std::clamp(std::ceil((1.0 - cost.slowdown) * cost.write_s / training.step_s), 1.0, training.steps);
  double low = std::log(least), high = std::log(training.steps);
  constexpr double kGolden = 0.6180339887498949;
  for (int i = 0; i < 80; ++i) {
    const double a = high - kGolden * (high - low), b = low + kGolden * (high - low);
    if (rate(std::exp(a)) >= rate(std::exp(b)))
      high = b;
    else
      low = a;
  }
  const double below = std::clamp(std::floor(std::exp(low) + 1e-6), least, training.steps);
  const double above = std::min(below + 1.0, training.steps);
  return rate(above) > rate(below) ? above : below;
}

double young_interval_s(const TrainingCase& training) {
  return std::sqrt(2.0 * training.checkpoint.lost_s() / recoveries_of(training).failures);
}

double daly_interval_s(const TrainingCase& training) {
  const double mtbf = 1.0 / recoveries_of(training).failures, cost = training.checkpoint.lost_s();
  if (cost >= 2.0 * mtbf) return mtbf;
  const double part = std::sqrt(cost / (2.0 * mtbf));
  return young_interval_s(training) * (1.0 + part / 3.0 + part * part / 9.0) - cost;
}

}  // namespace stepcast
