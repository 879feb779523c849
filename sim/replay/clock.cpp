#include "sim/replay/clock.hpp"

#include <algorithm>
#include <simgrid/kernel/Timer.hpp>
#include <simgrid/s4u.hpp>
#include <utility>

namespace stepcast {

Clock::Clock(Driver driver)
    : driver_(driver), start_(driver == Driver::kSimGrid ? simgrid::s4u::Engine::get_clock() : 0.0) {}

double Clock::now() const {
  return in_event_ || driver_ == Driver::kTimers ? now_
                                                 : std::max(now_, simgrid::s4u::Engine::get_clock() - start_);
}

void Clock::at(double date, Callback callback) {
  if (free_.empty()) {
    free_.push_back(callbacks_.size());
    callbacks_.emplace_back();
  }
  const std::size_t index = free_.back();
  free_.pop_back();
  callbacks_[index] = std::move(callback);
  events_.push({std::max(date, now()), next_order_++, index});
  if (driver_ == Driver::kSimGrid) arm();
}

Callback Clock::take_first() {
  const Event event = events_.top();
  events_.pop();
  now_ = std::max(now_, event.date);
  free_.push_back(event.callback);
  return std::exchange(callbacks_[event.callback], nullptr);
}

void Clock::run() {
  while (!events_.empty()) take_first()();
}

void Clock::arm() {
  if (events_.empty()) return;
  const double date = events_.top().date;
  if (armed_ >= 0.0 && armed_ <= date) return;
  armed_ = date;
  // start_ + (clock - start_) may lie one rounding before the clock, and SimGrid refuses a date in the past.
  const double not_past = std::max(start_ + date, simgrid::s4u::Engine::get_clock());
  simgrid::kernel::timer::Timer::set(not_past, [this, date] {
    if (date == armed_) run_due();  // else an earlier timer came in between and has armed the next
  });
}

void Clock::run_due() {
  armed_ = 0.0;  // events that the callbacks set are run by this loop or armed after it
  in_event_ = true;
  while (!events_.empty() && start_ + events_.top().date <= simgrid::s4u::Engine::get_clock()) take_first()();
  in_event_ = false;
  armed_ = -1.0;
  arm();
}

}  // namespace stepcast
