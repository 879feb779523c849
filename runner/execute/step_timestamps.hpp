#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <ranges>
#include <vector>

#include "core/clocks.hpp"
#include "core/ranges.hpp"
#include "runner/execute/device_stream.hpp"

namespace stepcast {

/// Timestamps of a step, each taken twice: when the launch thread passed it and when the device reached it.
/// Without a device both are equal.
class StepTimestamps {
 public:
  using Clock = DeviceStream::Clock;

  /// \param device null: the CPU computes \pre it outlives this
  explicit StepTimestamps(DeviceStream* device) : device_(device) {}

  /// Counts CPU time of this process between consecutive timestamps, at most the time between them, without
  /// time lost to other processes: for a host that computes in one thread and waits for no rank. \pre no
  /// device
  void count_processor_time(bool counts) { counts_processor_ = counts; }
  [[nodiscard]] bool counts_processor_time() const { return counts_processor_; }

  /// Drops all timestamps; to be called before timed work.
  void restart() {
    issued_.clear();
    done_.clear();
    ran_s_.clear();
    if (device_ != nullptr) device_->restart();
  }

  /// Takes a timestamp. From any thread, but not from several at once. \return its number
  std::size_t record_event() {
    if (device_ != nullptr) device_->record_event();
    issued_.push_back(Clock::now());
    if (counts_processor_) ran_s_.push_back(process_cpu_s());
    return issued_.size() - 1;
  }

  /// Waits for the device, so that the timestamps since restart() can be read.
  void settle() {
    done_ = issued_;
    if (device_ == nullptr) return;
    device_->drain();
    for (std::size_t i = 0; i < done_.size(); ++i) done_[i] = device_->time_of(i);
  }

  /// Seconds between two timestamps, of the launch thread and of the device.
  [[nodiscard]] double issued_s(std::size_t from, std::size_t to) const {
    return seconds(issued_[from], issued_[to]);
  }

  [[nodiscard]] double done_s(std::size_t from, std::size_t to) const {
    if (!counts_processor_) return seconds(done_[from], done_[to]);
    return sum_of(std::views::iota(from, to), [&](std::size_t i) {
      return std::min(seconds(done_[i], done_[i + 1]), ran_s_[i + 1] - ran_s_[i]);
    });
  }

  /// Time at which the launch thread passed the timestamp.
  [[nodiscard]] Clock::time_point issued(std::size_t mark) const { return issued_[mark]; }
  /// Time at which the device reached it, on the clock of the host.
  [[nodiscard]] Clock::time_point done(std::size_t mark) const { return done_[mark]; }

 private:
  static double seconds(Clock::time_point from, Clock::time_point to) {
    return std::chrono::duration<double>(to - from).count();
  }

  DeviceStream* device_;
  bool counts_processor_ = false;
  std::vector<Clock::time_point> issued_, done_;
  std::vector<double> ran_s_;  ///< CPU time by timestamp, if it is counted
};

}  // namespace stepcast
