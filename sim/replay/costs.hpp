#pragma once

#include <cstdint>
#include <vector>

#include "sim/replay/replay.hpp"
#include "sim/replay/shared_host.hpp"

namespace stepcast {

/// What the operations of a Schedule cost alone, from the trace, the calibration or the model's declared
/// times.
class Costs {
 public:
  explicit Costs(const ReplayInput& input);

  /// The measured steps that stand for what `rank` computes, one per step and micro-batch (micro-batches of a
  /// step together, warm-up first): -1 for medians, else rows drawn by the seed, the same for all segments, so
  /// that their correlation is kept. Drawn as a Latin hypercube: S draws take one row from each S-th part of
  /// the rows in the order of their step times, every rank in an order of its own, so that few steps give a
  /// steady median. McKay, Beckman and Conover, Technometrics 21, 1979.
  [[nodiscard]] std::vector<int> rows(int rank) const;

  /// The work of an operation that computes or copies; seconds is 0 where it costs nothing.
  [[nodiscard]] Job job(const Op& op, int rank, int row) const;
  /// Host time of a step that no operation accounts for.
  [[nodiscard]] Job rest_of_step(int rank, int row) const;

  /// Most memory above what the operation finds and leaves behind, while it runs.
  [[nodiscard]] double workspace_bytes(const Op& op) const;
  [[nodiscard]] double bytes(const MemoryChange& change) const;

  /// The part of a backward operation's time after which the gradient of `tensor` is ready; 1 without a
  /// trace.
  [[nodiscard]] double ready_fraction(int tensor) const {
    return ready_fraction_[static_cast<std::size_t>(tensor)];
  }

 private:
  struct Samples {
    std::vector<double> rows;
    double median_s = 0.0;
    [[nodiscard]] double at(int row) const {
      return row < 0 ? median_s : rows[static_cast<std::size_t>(row)];
    }
  };
  static Samples samples(const std::vector<double>& rows);
  [[nodiscard]] double compute_s(const Compute& compute, int row) const;
  [[nodiscard]] double copy_s(Bytes size) const;
  /// Sum of a phase over the segments of a unit.
  [[nodiscard]] double unit_s(const FsdpUnit& unit, const std::vector<Samples>& phase, int row) const;
  [[nodiscard]] const FsdpUnit& unit(int index) const {
    return input_.schedule->units[static_cast<std::size_t>(index)];
  }
  [[nodiscard]] double combine_s(const Combine& combine) const;
  [[nodiscard]] double seconds(const Op& op, int row) const;
  [[nodiscard]] Job make_job(double seconds, double cores, Bytes traffic, int rank) const;

  const ReplayInput& input_;
  std::vector<int> rows_;  ///< in the order of their step times
  Samples input_samples_, zero_grad_all_, loss_, optimizer_all_, host_;
  std::vector<Samples> forward_, backward_, zero_grad_, optimizer_;  ///< by segment
  std::vector<double> ready_fraction_;       ///< by parameter
};

}  // namespace stepcast
