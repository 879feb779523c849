#pragma once

#include <optional>
#include <vector>

#include "models/model.hpp"
#include "records/trace.hpp"
#include "schedule/schedule.hpp"

namespace stepcast {

/// How long the operations of a step compute on one rank that has its device to itself: from a trace, or as
/// the model declares.
///
/// An operation takes what the phase of its segment took. A unit of FSDP takes the sum over its segments, and
/// its optimizer 1/n of that, as its shard has 1/n of the parameters. Of a backward in halves, that of weights takes the part
/// of the whole that the trace says (an estimate does, by its kernels), else its part of the whole's flop, and that of the
/// input the rest (`Segment::weight_part`). What moves between memories or ranks takes no time here.
class StepTimes {
 public:
  /// \param trace null: the model declares its times
  /// \param accumulating samples of micro-batches that follow another one in their step; null: as `trace`
  /// \throws InputError when a trace is of another number of segments. \pre the model outlives this
  StepTimes(const Model& model, const TraceEntry* trace, const TraceEntry* accumulating);

  /// Seconds of an operation of `schedule`; 0 for what does not compute.
  /// \param place which measured step counts, in the order of the step times from 0 to 1; negative: the
  /// median of each phase
  /// \param follows the operation's phase and segment ran before in this step, for another micro-batch
  [[nodiscard]] double seconds(const Schedule& schedule, const Op& op, double place, bool follows) const;
  /// Host time of a step that no operation accounts for.
  [[nodiscard]] double rest_of_step_s(double place) const;
  /// The part of the time of the operation that hosts a hook after which it runs: where the gradient is ready or the
  /// exchange stands; 1 without a trace.
  [[nodiscard]] double hook_fraction(const Op& hook) const {
    return hook.exchange >= 0 ? exchange_fraction_[static_cast<std::size_t>(hook.exchange)]
                              : ready_fraction_[static_cast<std::size_t>(hook.ready_tensor)];
  }
  /// By operation of a program, whether one of the same phase and segment runs before it in a step.
  static std::vector<char> followers(const Program& program);

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
  /// Of a backward: of the time of the whole.
  [[nodiscard]] double part_of_backward(Phase phase, std::size_t segment) const;
  /// Sum of a phase over the segments of a unit.
  [[nodiscard]] double unit_s(const FsdpUnit& unit, const std::vector<Samples>& phase, int row) const;

  const Model& model_;
  bool traced_;
  Table table_;
  std::optional<Table> accumulating_;
  std::vector<double> ready_fraction_;     ///< by parameter
  std::vector<double> exchange_fraction_;  ///< by exchange of the model
  std::vector<double> weight_part_;        ///< of the backward, by segment
};

}  // namespace stepcast
