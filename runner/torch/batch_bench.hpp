#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <thread>
#include <vector>

#include "core/clocks.hpp"
#include "core/program.hpp"
#include "core/statistics.hpp"
#include "records/machine_state.hpp"
#include "records/trace.hpp"
#include "runner/backend/work_queue.hpp"
#include "runner/execute/memory_account.hpp"
#include "runner/execute/step_timestamps.hpp"
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
             StepContext pace, WorkQueue& other)
      : model_(model),
        part_(part),
        other_(other),
        device_(options.device),
        timestamps_(options.device),
        pass_(model),
        ready_(model.parameters().size()),
        reached_(model.model().collectives.size()),
        collective_fractions_(reached_.size()) {
    entry_.batch = batch;
    entry_.threads = options.threads;
    entry_.pace = pace;
    entry_.first_segment = part.segments().front();
    for (const int index : part.segments()) {
      const Segment& segment = model.model().segments[index];
      entry_.segments.emplace_back();
      entry_.segments.back().name = segment.name;
      fractions_.emplace_back(segment.parameters.size());
    }
  }

  void warmup_step() {
    segmented_step(Kept::kNone);
    native_step(false);
    timestamps_.count_processor_time(device_ == nullptr && entry_.threads == 1 && shortest_s_ >= kLongStepS);
  }

  /// Runs the step that precedes a sampled one: a whole-graph step, or a step that waits.
  void first_step_of_turn() {
    entry_.pace == StepContext::kContinuous ? native_step(false) : segmented_step(Kept::kNone);
  }

  void next_step_of_turn() {
    if (device_ != nullptr) {
      segmented_step(Kept::kPhaseTimes);
      native_step(false);  // waiting for the blocked device leaves the launch thread's caches cold
    }
    segmented_step(device_ != nullptr ? Kept::kStepTime : Kept::kBoth);
    if (entry_.pace == StepContext::kContinuous) native_step(true);
  }

  /// Records the state of the machine during the steps since the last call.
  void note(const MachineState& machine) {
    // CPU time contains what the hypervisor stole, at worst all of it from the one core that computes.
    const double stolen = machine.stolen * static_cast<double>(usable_cores().size());
    const double others = std::max(0.0, machine.lost_fraction - stolen);
    for (std::size_t step = entry_.machine.size(); step < entry_.steps(); ++step)
      entry_.machine.add(machine.probe_per_s, machine.lost_fraction, left_alone_[step] != 0 ? others : 0.0);
  }

  [[nodiscard]] const MachineLog& machine() const { return entry_.machine; }

  /// Returns the samples so far, with medians of the fractions.
  TraceEntry finish(double foreign_bytes) {
    for (std::size_t segment = 0; segment < fractions_.size(); ++segment)
      for (const std::vector<double>& samples : fractions_[segment])
        entry_.segments[segment].grad_ready_fraction.push_back(median(samples));
    for (const std::vector<double>& samples : collective_fractions_)  // none: of another stage
      entry_.exchange_fraction.push_back(samples.empty() ? 1.0 : median(samples));
    observe_memory(model_, part_, step_++, foreign_bytes, entry_);
    return std::move(entry_);
  }

 private:
  static constexpr std::chrono::microseconds kSleep{200};  ///< of the other thread

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
  void update(std::optional<std::size_t> segment = std::nullopt) {
    const MemoryScope scope(MemoryCategory::kOptimizerState);
    model_.optimizer_step(segment);
  }

  /// Runs forward, loss and backward of a micro-batch.
  void whole_pass(Arrival arrival) {
    part_.forward(pass_, arrival);
    for (std::size_t segment = part_.end(); segment-- > part_.first();) part_.backward(pass_, segment);
  }

  /// On a blocked device the lap begins after all that was issued before.
  template <class Phase>
  Lap lap(bool held, Phase phase) {
    // The device goes on if issuing takes longer or waits for it.
    constexpr std::chrono::milliseconds kLongest{50};
    if (held) {
      device_->drain();
      device_->hold(kLongest);
    }
    Lap lap{.from = held ? timestamps_.record_event() : last_};
    phase();
    lap.to = last_ = timestamps_.record_event();
    if (held) device_->release();
    return lap;
  }

  StepLaps run_segmented(bool held) {
    const std::size_t first = part_.first(), end = part_.end();
    StepLaps laps;
    laps.segments.resize(end);
    laps.start = last_ = timestamps_.record_event();
    Arrival arrival;
    torch::Tensor value;
    laps.input = lap(held, [&] { arrival = next_arrival(); });
    for (std::size_t segment = first; segment < end; ++segment)
      laps.segments[segment].zero_grad = lap(held, [&] { model_.zero_grad(segment); });
    if (entry_.pace == StepContext::kAccumulating) laps.uncounted = lap(false, [&] { whole_pass(arrival); });
    pass_.receive(first, std::move(arrival.input));
    for (std::size_t segment = first; segment < end; ++segment)
      laps.segments[segment].forward = lap(held, [&] { pass_.forward(segment); });
    laps.loss = lap(held, [&] { value = part_.loss(pass_, arrival); });
    for (std::size_t segment = end; segment-- > first;)
      laps.segments[segment].backward = lap(held, [&] { part_.backward(pass_, segment); });
    if (entry_.pace == StepContext::kWaiting)
      laps.uncounted = lap(false, [&] { other_.push([] { std::this_thread::sleep_for(kSleep); })->wait(); });
    for (std::size_t segment = first; segment < end; ++segment)
      laps.segments[segment].optimizer = lap(held, [&] { update(segment); });
    if (value.defined() && device_ != nullptr)
      static_cast<void>(value.item<double>());
    else if (device_ != nullptr)
      device_->drain();
    return laps;
  }

  void segmented_step(Kept keep) {
    model_.set_gradient_hook([this](int tensor) { ready_[tensor] = timestamps_.record_event(); });
    model_.set_collective([this](int index, const torch::Tensor& own) {
      reached_[index] = timestamps_.record_event();
      return collective_alone(model_.model(), index, own);
    });
    timestamps_.restart();
    const double ran_before_s = process_cpu_s();
    const StepLaps laps = run_segmented(keep == Kept::kPhaseTimes);
    const double over_s = wall_clock_s(), ran_s = process_cpu_s() - ran_before_s;
    model_.set_gradient_hook({});
    model_.set_collective({});
    timestamps_.settle();
    const double whole_s = over_s - clock_s(timestamps_.issued(laps.start));
    shortest_s_ = std::min(shortest_s_, whole_s);
    if (keep == Kept::kStepTime || keep == Kept::kBoth)
      keep_step(laps, whole_s, ran_s, over_s - clock_s(timestamps_.done(last_)));
    if (keep == Kept::kStepTime) shorten_launches(laps);
    if (keep == Kept::kPhaseTimes || keep == Kept::kBoth) keep_phases(laps);
  }

  void native_step(bool keep) {
    const double start_s = wall_clock_s(), ran_before_s = process_cpu_s();
    {
      const Arrival arrival = next_arrival();
      model_.zero_grad();
      torch::Tensor value = part_.has_input() ? arrival.input : arrival.input.requires_grad_();
      for (std::size_t segment = part_.first(); segment < part_.end(); ++segment)
        value = model_.forward(segment, value);
      if (part_.has_loss()) value = model_.loss(value, arrival.target);
      value.backward(arrival.gradient);
      update();
      if (part_.has_loss())
        static_cast<void>(value.item<double>());
      else if (device_ != nullptr)
        device_->drain();
    }
    const double wall_s = wall_clock_s() - start_s, ran_s = process_cpu_s() - ran_before_s;
    if (keep)
      entry_.native_step_s.push_back(timestamps_.counts_processor_time() ? std::min(wall_s, ran_s) : wall_s);
  }

  /// \param over_s from the last event to the end of the step
  void keep_step(const StepLaps& laps, double whole_s, double ran_s, double over_s) {
    entry_.launch.push_back(0);
    // No other process slowed a step during which this process ran all the time, or which is timed by CPU
    // time.
    constexpr double kAllTheTime = 0.98;
    const Lap& uncounted = laps.uncounted;
    const double asleep_s =
        entry_.pace == StepContext::kWaiting ? timestamps_.issued_s(uncounted.from, uncounted.to) : 0.0;
    const bool one_thread = device_ == nullptr && entry_.threads == 1;
    left_alone_.push_back(timestamps_.counts_processor_time() ||
                          (one_thread && ran_s >= kAllTheTime * (whole_s - asleep_s)));
    entry_.host_s.push_back(std::max(0.0, over_s));
    entry_.step_s.push_back(timestamps_.done_s(laps.start, last_) + entry_.host_s.back() -
                            timestamps_.done_s(uncounted.from, uncounted.to));
  }

  using KeepLap =
      std::function<void(const Lap&, std::vector<double>& times, std::vector<double>& launch_times)>;
  void each_lap(const StepLaps& laps, const KeepLap& keep) {
    keep(laps.input, entry_.input_s, entry_.input_issue_s);
    keep(laps.loss, entry_.loss_s, entry_.loss_issue_s);
    for (std::size_t segment = part_.first(); segment < part_.end(); ++segment) {
      const SegmentLaps& own = laps.segments[segment];
      SegmentTrace& trace = entry_.segments[segment - part_.first()];
      keep(own.forward, trace.forward_s, trace.forward_issue_s);
      keep(own.backward, trace.backward_s, trace.backward_issue_s);
      keep(own.zero_grad, trace.zero_grad_s, trace.zero_grad_issue_s);
      keep(own.optimizer, trace.optimizer_s, trace.optimizer_issue_s);
    }
  }

  void keep_phases(const StepLaps& laps) {
    each_lap(laps, [this](const Lap& one, std::vector<double>& times, std::vector<double>& launch_times) {
      times.push_back(timestamps_.done_s(one.from, one.to));
      if (device_ != nullptr) launch_times.push_back(timestamps_.issued_s(one.from, one.to));
    });
    if (part_.has_loss()) keep_collectives(-1, false, laps.loss);
    for (std::size_t segment = part_.first(); segment < part_.end(); ++segment) {
      const SegmentLaps& own = laps.segments[segment];
      keep_collectives(static_cast<int>(segment), false, own.forward);
      keep_collectives(static_cast<int>(segment), true, own.backward);
      const std::vector<int>& tensors = model_.model().segments[segment].parameters;
      for (std::size_t i = 0; i < tensors.size(); ++i)
        fractions_[segment - part_.first()][i].push_back(fraction(own.backward, ready_[tensors[i]]));
    }
  }

  /// Issuing a phase takes no longer than it took on a device that was not blocked: after a wait for a
  /// blocked one the launch thread is slow, and beside a busy one it may wait for the queue.
  void shorten_launches(const StepLaps& laps) {
    each_lap(laps, [this](const Lap& one, std::vector<double>& /*times*/, std::vector<double>& launch_times) {
      if (!launch_times.empty())
        launch_times.back() = std::min(launch_times.back(), timestamps_.issued_s(one.from, one.to));
    });
  }

  /// \param segment -1: the loss
  void keep_collectives(int segment, bool backward, const Lap& phase) {
    const std::vector<LayerCollective>& collectives = model_.model().collectives;
    for (std::size_t i = 0; i < collectives.size(); ++i)
      if (collectives[i].segment == segment && collectives[i].backward == backward)
        collective_fractions_[i].push_back(fraction(phase, reached_[i]));
  }

  /// Part of a phase that has passed at an event.
  [[nodiscard]] double fraction(const Lap& phase, std::size_t event) const {
    const double whole = timestamps_.done_s(phase.from, phase.to);
    return whole > 0.0 ? std::clamp(timestamps_.done_s(phase.from, event) / whole, 0.0, 1.0) : 1.0;
  }

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
