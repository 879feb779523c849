#pragma once

#include <vector>

#include "records/phase_costs.hpp"
#include "schedule/operations.hpp"
#include "sim/replay/replay.hpp"
#include "sim/replay/shared_host.hpp"

namespace stepcast {

/// Costs of the operations of a Schedule, each alone: from the phase costs, the calibration, and the memory
/// bandwidth of a GPU.
class Costs {
 public:
  explicit Costs(const ReplayInput& input);

  /// Quantiles of the measured steps whose times `rank` takes, one per step and micro-batch, warm-up first.
  /// From 0 to 1 in the order of the step times; negative: medians. All segments take the same one, so that
  /// their correlation is kept. Drawn as a Latin hypercube: S draws take one quantile from each S-th part, in
  /// an order of the rank's own, so that few steps give a steady median. McKay, Beckman and Conover,
  /// Technometrics 21, 1979.
  [[nodiscard]] std::vector<double> sample_quantiles(int rank) const;

  /// Work of an operation that computes or copies. Its seconds are 0 if it costs nothing.
  /// \param follows the operation's phase and segment ran before in this step, for another micro-batch
  [[nodiscard]] Job job(const Op& op, int rank, double quantile, bool follows = false) const;
  /// Launch overhead of the operation in seconds; 0 without asynchronous kernel launch.
  [[nodiscard]] double launch_s(const Op& op) const {
    return input_.compute.launch ? phases_.launch_s(*input_.schedule, op) : 0.0;
  }
  /// Host time of a step that no operation accounts for.
  [[nodiscard]] Job rest_of_step(int rank, double quantile) const;
  [[nodiscard]] const PhaseCosts& phases() const { return phases_; }

 private:
  [[nodiscard]] double seconds(const Op& op, double quantile, bool follows) const;
  [[nodiscard]] int node(int rank) const { return input_.node_of_rank[rank]; }
  [[nodiscard]] Job make_job(double seconds, double cores, Bytes traffic, int rank) const;

  const ReplayInput& input_;
  const PhaseCosts declared_;  ///< used if the input has no phase costs
  const PhaseCosts& phases_;
};

}  // namespace stepcast
