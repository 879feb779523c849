#pragma once

#include <optional>
#include <vector>

#include "records/step_times.hpp"
#include "schedule/operations.hpp"
#include "sim/replay/replay.hpp"
#include "sim/replay/shared_host.hpp"

namespace stepcast {

/// Cost of each operation of a Schedule when it runs alone, from the trace, the calibration or the model's declared times.
class Costs {
 public:
  explicit Costs(const ReplayInput& input);

  /// Which measured step stands for what `rank` computes, one per step and micro-batch (micro-batches of a
  /// step together, warm-up first): negative for medians, else its place in the order of the step times, from
  /// 0 to 1, drawn by the seed and the same for all segments, so that their correlation is kept. Drawn as a
  /// Latin hypercube: S draws take one place from each S-th part, every rank in an order of its own, so that
  /// few steps give a steady median. McKay, Beckman and Conover, Technometrics 21, 1979.
  [[nodiscard]] std::vector<double> places(int rank) const;

  /// The work of an operation that computes or copies; seconds is 0 where it costs nothing.
  /// \param follows the operation's phase and segment ran before in this step, for another micro-batch
  [[nodiscard]] Job job(const Op& op, int rank, double place, bool follows = false) const;
  /// What it takes a host that runs ahead to issue the operation; 0 where none does.
  [[nodiscard]] double issue_s(const Op& op) const {
    return issue_ ? issue_->seconds(*input_.schedule, op, -1.0, false) : 0.0;
  }
  /// Host time of a step that no operation accounts for.
  [[nodiscard]] Job rest_of_step(int rank, double place) const;

  /// Most memory above what the operation finds and leaves behind, while it runs.
  [[nodiscard]] double workspace_bytes(const Op& op) const;
  [[nodiscard]] double bytes(const MemoryChange& change) const;

  /// The part of the time of the operation that hosts a hook after which it runs.
  [[nodiscard]] double hook_fraction(const Op& hook) const { return times_.hook_fraction(hook); }

 private:
  [[nodiscard]] double seconds(const Op& op, double place, bool follows) const;
  [[nodiscard]] int node(int rank) const { return input_.node_of_rank[rank]; }
  [[nodiscard]] Job make_job(double seconds, double cores, Bytes traffic, int rank) const;

  const ReplayInput& input_;
  StepTimes times_;
  std::optional<StepTimes> issue_;
};

}  // namespace stepcast
