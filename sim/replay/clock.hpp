#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <queue>
#include <vector>

/// Simulated time of one replay and its timers.
namespace stepcast {

using Callback = std::function<void()>;

/// A clock and its timers. Callbacks of one time run in the order in which they were set, so that equal
/// inputs give equal outputs.
class Clock {
 public:
  enum class Driver : std::uint8_t {
    kTimers,   ///< time passes from one timer to the next: `run`
    kSimGrid,  ///< SimGrid's clock, counted from the start of this replay: it never restarts in a process
  };
  /// \pre of kSimGrid: an engine exists and lives longer
  explicit Clock(Driver driver);
  Clock(const Clock&) = delete;
  Clock& operator=(const Clock&) = delete;
  ~Clock() = default;

  /// Seconds since the start of the replay.
  [[nodiscard]] double now() const;
  /// Calls back at `date`, or as soon as possible if it is past; never from inside this call.
  void at(double date, Callback callback);
  /// Runs until no timer is set. \pre kTimers
  void run();

 private:
  struct Event {
    double date = 0.0;
    std::uint64_t order = 0;
    std::size_t callback = 0;  ///< index
    friend bool operator>(const Event& a, const Event& b) {
      return a.date != b.date ? a.date > b.date : a.order > b.order;
    }
  };
  Callback take_first();
  void arm();
  void run_due();

  const Driver driver_;
  double start_ = 0.0;
  double now_ = 0.0;  ///< date of the last event, exact where SimGrid's clock is rounded
  bool in_event_ = false;
  double armed_ = -1.0;  ///< date of the earliest timer given to SimGrid; < 0: none
  std::uint64_t next_order_ = 0;
  /// Also with SimGrid: one of its timers at the earliest event is cheaper than thousands of them.
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::vector<Callback> callbacks_;  ///< outside the queue, which moves its events often
  std::vector<std::size_t> free_;    ///< indices of callbacks
};

}  // namespace stepcast
