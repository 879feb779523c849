#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "core/error.hpp"
#include "core/number.hpp"
#include "core/ranges.hpp"
#include "sim/train/training.hpp"

namespace stepcast {

/// Expected wall-clock time of one training with plans of different ranks and steps, in closed form.
class ExpectedTraining {
 public:
  /// \param facts of any plan: the model's state, the samples of a step and the hosts
  /// \throws UsageError if there is no closed form, with the reason, or the interval is in steps
  ExpectedTraining(const TrainingFacts& facts, const TrainingRequest& request)
      : facts_(facts), request_(request) {
    constexpr double kLongest = 1e4;  // seconds; shorter steps make no longer trainings
    if (number_in<int>(request.checkpoint.interval))
      throw UsageError("--interval {}: steps of plans last differently; set a time, as 30min",
                       request.checkpoint.interval);
    facts_.step_s = 1e-3;
    steps_ = plan_training(facts_, request_).training.steps;
    request_.tokens = request_.epochs = 0.0;
    request_.steps = request.checkpoint.method == "none" ? 1.0 : steps_ * kLongest / facts_.step_s;
    useful_rate(known(facts.ranks).training);
  }

  /// Per step of `step_s`, at the best interval of whole steps.
  double wall_s(int ranks, double step_s) {
    TrainingCase training = known(ranks).training;
    const double interval = training.interval * training.step_s / step_s;
    training.step_s = step_s;
    training.steps = steps_;
    training.interval = training.checkpoint.exists ? std::clamp(std::round(interval), 1.0, steps_) : steps_;
    return step_s / useful_rate(training);
  }
  [[nodiscard]] double steps() const { return steps_; }
  /// `async every 12.3 min`
  std::string checkpoints(int ranks, double step_s) {
    const TrainingPlan& plan = known(ranks);
    if (plan.checkpoint.method == "none") return "none";
    return fmt::format("{} every {:.1f} min", plan.checkpoint.method,
                       std::min(plan.training.interval * plan.training.step_s, steps_ * step_s) / 60.0);
  }
  /// With spares.
  [[nodiscard]] int devices(int ranks) const { return facts_.host.with_spares(ranks, request_.spares); }

 private:
  /// Plan of a training of 1 ms steps, whose best interval is neither rounded nor cut.
  const TrainingPlan& known(int ranks) {
    facts_.ranks = ranks;
    return cached(known_, ranks, [&] { return plan_training(facts_, request_); });
  }
  /// \throws UsageError if the closed form does not hold
  static double useful_rate(const TrainingCase& training) {
    const Renewal renewal = renewal_of(training);
    if (renewal.obstacle.empty()) return renewal.useful_rate;
    throw UsageError("plans are compared in closed form, and there is none: {}", renewal.obstacle);
  }

  TrainingFacts facts_;
  TrainingRequest request_;
  double steps_ = 0.0;
  std::map<int, TrainingPlan> known_;  ///< by ranks
};

}  // namespace stepcast
