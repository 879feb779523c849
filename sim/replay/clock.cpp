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
  heap_.push_back({std::max(date, now()), next_order_++, index});
  std::push_heap(heap_.begin(), heap_.end(), Later());
  if (driver_ == Driver::kSimGrid) arm();
}

Callback Clock::take_first() {
  std::pop_heap(heap_.begin(), heap_.end(), Later());
  const Event event = heap_.back();
  heap_.pop_back();
  now_ = std::max(now_, event.date);
  free_.push_back(event.callback);
  return std::exchange(callbacks_[event.callback], nullptr);
}

void Clock::run() {
  while (!heap_.empty()) take_first()();
}

void Clock::arm() {
  if (heap_.empty()) return;
  const double date = heap_.front().date;
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
  while (!heap_.empty() && start_ + heap_.front().date <= simgrid::s4u::Engine::get_clock()) take_first()();
  in_event_ = false;
  armed_ = -1.0;
  arm();
}

}  // namespace stepcast
