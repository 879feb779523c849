#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <vector>

#include "records/machine_state.hpp"
#include "records/trace.hpp"
#include "runner/backend/work_queue.hpp"
#include "runner/torch/measured_part.hpp"

namespace stepcast {

/// Measures the steps of one batch size in one StepContext.
///
/// On a device a sample consists of three steps: one whose phases are issued while the device is blocked and
/// then run without waiting for the launch thread, which separates launch overhead from device time; one that
/// runs as training does, whose step time counts; and one of the whole graph.
class BatchBench {
 public:
  BatchBench(TorchModel& model, const MeasuredPart& part, int batch, const MeasureOptions& options,
             StepContext pace, WorkQueue& other);

  void warmup_step();
  /// Runs the step that precedes a sampled one: a whole-graph step, or a step that waits.
  void first_step_of_turn();
  void next_step_of_turn();

  /// Records the state of the machine during the steps since the last call.
  void note(const MachineState& machine);
  [[nodiscard]] const MachineLog& machine() const { return entry_.machine; }

  /// Returns the samples so far, with medians of the fractions.
  TraceEntry finish(double foreign_bytes);

 private:
  /// Times of a step that are added to the entry: none, those of its phases, the step time, or all.
  enum class Kept : std::uint8_t { kNone, kPhaseTimes, kStepTime, kBoth };
  /// Events before and after a phase.
  struct Lap {
    std::size_t from = 0, to = 0;
  };
  struct SegmentLaps {
    Lap forward, backward, zero_grad, optimizer;
  };
  struct StepLaps {
    std::vector<SegmentLaps> segments;  ///< from the first segment of the model on
    Lap input, loss, uncounted;
    std::size_t start = 0;
  };

  [[nodiscard]] Arrival next_arrival() { return part_.arrival(step_++, entry_.batch); }
  void update(std::optional<std::size_t> segment = std::nullopt);
  /// Runs forward, loss and backward of a micro-batch.
  void whole_pass(Arrival arrival);
  template <class Phase>
  Lap lap(bool held, Phase phase);
  StepLaps run_segmented(bool held);
  void segmented_step(Kept keep);
  void native_step(bool keep);
  void keep_step(const StepLaps& laps, double whole_s, double ran_s, double over_s);
  using KeepLap =
      std::function<void(const Lap&, std::vector<double>& times, std::vector<double>& launch_times)>;
  void each_lap(const StepLaps& laps, const KeepLap& keep);
  void keep_phases(const StepLaps& laps);
  void shorten_launches(const StepLaps& laps);
  /// \param segment -1: the loss
  void keep_collectives(int segment, bool backward, const Lap& phase);
  /// Part of a phase that has passed at an event.
  [[nodiscard]] double fraction(const Lap& phase, std::size_t event) const;

  TorchModel& model_;
  const MeasuredPart& part_;
  WorkQueue& other_;
  DeviceStream* device_;
  StepTimestamps timestamps_;
  std::size_t last_ = 0;          ///< event
  std::vector<char> left_alone_;  ///< by step, 1: its time contains no time lost to other processes
  double shortest_s_ = std::numeric_limits<double>::infinity();  ///< step so far
  SegmentedPass pass_;
  std::int64_t step_ = 0;
  TraceEntry entry_;
  std::vector<std::size_t> ready_;                           ///< event, by parameter
  std::vector<std::vector<std::vector<double>>> fractions_;  ///< by segment, position in ready order, step
  std::vector<std::size_t> reached_;                         ///< event, by collective of the model
  std::vector<std::vector<double>> collective_fractions_;    ///< by collective, step
};

}  // namespace stepcast
