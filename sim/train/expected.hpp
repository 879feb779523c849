#pragma once

#include <map>

#include "sim/train/training.hpp"

namespace stepcast {

/// Expected wall-clock time of one training with plans of different ranks and steps, in closed form.
class ExpectedTraining {
 public:
  /// \param facts of any plan: the model's state, the samples of a step and the hosts
  /// \throws UsageError if there is no closed form, with the reason, or the interval is in steps
  ExpectedTraining(const TrainingFacts& facts, const TrainingRequest& request);

  /// Per step of `step_s`, at the best interval of whole steps.
  double wall_s(int ranks, double step_s);
  [[nodiscard]] double steps() const { return steps_; }
  /// `async every 12.3 min`
  std::string checkpoints(int ranks, double step_s);
  /// With spares.
  [[nodiscard]] int devices(int ranks) const { return facts_.host.with_spares(ranks, request_.spares); }

 private:
  /// Plan of a training of 1 ms steps, whose best interval is neither rounded nor cut.
  const TrainingPlan& known(int ranks);

  TrainingFacts facts_;
  TrainingRequest request_;
  double steps_ = 0.0;
  std::map<int, TrainingPlan> known_;  ///< by ranks
};

}  // namespace stepcast
