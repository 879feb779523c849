#pragma once

#include <gloo/transport/unbound_buffer.h>

#include <cstdint>
#include <limits>
#include <string>

#include "runner/backend/work_queue.hpp"
#include "runner/gloo/gloo_connection.hpp"

namespace stepcast {

/// A send or receive: gloo's device thread moves the bytes, nobody waits in a queue. Gloo tells its end only
/// to a thread that waits for it, and to one alone: the caller, when it waits first, else a thread of
/// PostedCalls. It ends when that thread wakes.
class PostedCall : public TimedWork {
 public:
  /// Posts it. \param what for errors \throws gloo::IoException when the connection is closed
  PostedCall(std::shared_ptr<GlooConnection> connection, std::string what, bool sends, const Array& data,
             int peer, std::uint64_t slot)
      : connection_(std::move(connection)),
        what_(std::move(what)),
        sends_(sends),
        buffer_(connection_->context()->createUnboundBuffer(data.data, data.bytes())) {
    started_ = Clock::now();
    if (sends_)
      buffer_->send(peer, slot);
    else
      buffer_->recv(peer, slot);
  }

  /// \throws RunError when the connection broke or the call is not over after the connection's timeout; then
  /// gloo closes all connections of the context
  void wait() override {
    connection_->guarded(what_, [&] {
      const std::chrono::milliseconds timeout = connection_->context()->getTimeout();
      std::unique_lock lock(mutex_);
      if (!claimed_) {
        wait_in_gloo(lock, timeout);
      } else if (!changed_.wait_for(lock, timeout, [&] { return over_; })) {
        abort_in_gloo();
        changed_.wait(lock, [&] { return !attended_; });
        // What is late now is late: gloo says so, and closes the connections.
        if (!over_) wait_in_gloo(lock, std::chrono::milliseconds{0});
      }
      if (error_) std::rethrow_exception(error_);
    });
  }

  /// Whether somebody waits or has waited.
  [[nodiscard]] bool claimed() const {
    const std::scoped_lock lock(mutex_);
    return claimed_;
  }

  /// Waits on a thread of PostedCalls, for as long as it takes, unless the caller already does.
  void attend() {
    constexpr std::chrono::hours kForever{24 * 365};
    std::unique_lock lock(mutex_);
    if (claimed_) return;
    attended_ = true;
    wait_in_gloo(lock, kForever);
    attended_ = false;
    changed_.notify_all();
  }

  /// Takes the memory from gloo, over or not: the caller is about to lose it. Of a call that is well over, gloo's part is
  /// destroyed by `retired`, since its destructor yields the core until gloo's device thread has let go of it: a caller that
  /// goes ahead of that thread, on its core, would yield for nothing, until the system stops it after a second.
  void release(WorkQueue& retired) {
    std::unique_lock lock(mutex_);
    claimed_ = true;
    if (attended_) abort_in_gloo();
    changed_.wait(lock, [&] { return !attended_; });
    if (over_ && !error_)
      retired.push([buffer = std::shared_ptr(std::move(buffer_)), connection = connection_] {});
    else
      buffer_.reset();
    connection_.reset();
  }

 private:
  void wait_in_gloo(std::unique_lock<std::mutex>& lock, std::chrono::milliseconds timeout) {
    claimed_ = true;
    lock.unlock();
    std::exception_ptr error;
    bool finished = true;
    try {
      finished = sends_ ? buffer_->waitSend(timeout) : buffer_->waitRecv(timeout);
    } catch (...) {
      error = std::current_exception();
    }
    const Clock::time_point now = Clock::now();
    lock.lock();
    if (!finished) return;
    ended_ = now;
    error_ = error;
    over_ = true;
  }

  void abort_in_gloo() {
    if (sends_)
      buffer_->abortWaitSend();
    else
      buffer_->abortWaitRecv();
  }

  std::shared_ptr<GlooConnection> connection_;
  std::string what_;
  bool sends_;
  std::unique_ptr<gloo::transport::UnboundBuffer> buffer_;
  bool claimed_ = false;   ///< somebody waits or has waited in gloo
  bool attended_ = false;  ///< a thread of PostedCalls does
};

/// Threads that wait for posted calls, so that each is known to be over, and when, although its caller is
/// busy elsewhere: one per call that is under way, kept and asleep, and one that hands calls over. A caller
/// has a head start of 300 us: if it waits by then, no other thread is woken, and a ping-pong costs what it
/// costs without these threads. Ends are exact to a thread's wake-up, except that an end within the head
/// start that nobody waited for is seen when the head start is over, up to about 0.7 ms late. Threads whose
/// calls are under way at the end are left behind until those are over or released.
class PostedCalls {
 public:
  void add(const std::shared_ptr<PostedCall>& call) {
    young_.push([call, attending = attending_] {
      constexpr std::chrono::microseconds kHeadStart{300};
      if (PostedCall::Clock::now() < call->started() + kHeadStart) std::this_thread::sleep_for(kHeadStart);
      if (!call->claimed()) attending->push([call] { call->attend(); });
    });
  }
  /// Where what is left of calls that are over is destroyed.
  [[nodiscard]] const std::shared_ptr<WorkQueue>& retired() const { return retired_; }

 private:
  std::shared_ptr<WorkQueue> attending_ =
      std::make_shared<WorkQueue>(0, std::numeric_limits<std::size_t>::max());
  WorkQueue young_{0, 1};
  /// One thread from the start on, with the priority that the process had then.
  std::shared_ptr<WorkQueue> retired_ = std::make_shared<WorkQueue>(1, 1);
};

}  // namespace stepcast
