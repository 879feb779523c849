#include "sim/train/expected.hpp"

#include <algorithm>
#include <cmath>

#include "core/error.hpp"

namespace stepcast {

ExpectedTraining::ExpectedTraining(const TrainingFacts& facts, const TrainingRequest& request)
    : facts_(facts), request_(request) {
  facts_.step_s = 1e-3;
  steps_ = plan_training(facts_, request_).training.steps;
  request_.tokens = request_.epochs = 0.0;
  request_.steps = steps_ / facts_.step_s;
  if (const std::string obstacle = renewal_of(known(facts.ranks).training).obstacle; !obstacle.empty())
    throw UsageError("plans are compared in closed form, and there is none: {}", obstacle);
}

const TrainingPlan& ExpectedTraining::known(int ranks) {
  facts_.ranks = ranks;
  if (!known_.contains(ranks)) known_.emplace(ranks, plan_training(facts_, request_));
  return known_.at(ranks);
}

double ExpectedTraining::wall_s(int ranks, double step_s) {
  TrainingCase training = known(ranks).training;
  const double interval = training.interval * training.step_s / step_s;
  training.step_s = step_s;
  training.interval = std::clamp(std::round(interval), 1.0, steps_);
  return step_s / renewal_of(training).useful_rate;
}

std::string ExpectedTraining::checkpoints(int ranks) {
  const TrainingPlan& plan = known(ranks);
  if (plan.checkpoint.method == "none") return "none";
  return fmt::format("{} every {:.1f} min", plan.checkpoint.method,
                     plan.training.interval * plan.training.step_s / 60.0);
}

}  // namespace stepcast
