#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "sim/replay/replay.hpp"
#include "sim/replay/shared_host.hpp"

namespace stepcast {

/// What the operations of a Schedule cost alone, from the trace, the calibration or the model's declared
/// times.
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
  /// Host time of a step that no operation accounts for.
  [[nodiscard]] Job rest_of_step(int rank, double place) const;

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
  /// The samples of one trace entry.
  struct Table {
    std::vector<int> rows;  ///< in the order of their step times
    Samples input, zero_grad_all, loss, optimizer_all, host;
    std::vector<Samples> forward, backward, zero_grad, optimizer;  ///< by segment
    [[nodiscard]] int row(double place) const;
  };
  static Samples samples(const std::vector<double>& rows);
  [[nodiscard]] Table table(const TraceEntry& trace) const;
  [[nodiscard]] double compute_s(const Compute& compute, const Table& from, int row) const;
  [[nodiscard]] double copy_s(Bytes size) const;
  /// Sum of a phase over the segments of a unit.
  [[nodiscard]] double unit_s(const FsdpUnit& unit, const std::vector<Samples>& phase, int row) const;
  [[nodiscard]] const FsdpUnit& unit(int index) const {
    return input_.schedule->units[static_cast<std::size_t>(index)];
  }
  [[nodiscard]] double combine_s(const Combine& combine) const;
  [[nodiscard]] double seconds(const Op& op, const Table& from, int row) const;
  [[nodiscard]] Job make_job(double seconds, double cores, Bytes traffic, int rank) const;

  const ReplayInput& input_;
  Table table_;
  std::optional<Table> accumulating_;
  std::vector<double> ready_fraction_;  ///< by parameter
};

}  // namespace stepcast
