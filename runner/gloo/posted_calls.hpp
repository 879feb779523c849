#pragma once

#include <gloo/transport/unbound_buffer.h>

#include <cstdint>
#include <limits>
#include <string>

#include "runner/backend/work_queue.hpp"
#include "runner/gloo/gloo_connection.hpp"

namespace stepcast {

/// Send or receive. Gloo's device thread moves the bytes, without a queue. Gloo reports the end to one
/// waiting thread only: the caller if it waits first, else a thread of PostedCalls. The call ends when that
/// thread wakes up.
class PostedCall : public TimedWork {
 public:
  /// Posts the call. \param what for errors \throws gloo::IoException if the connection is closed
  PostedCall(std::shared_ptr<GlooConnection> connection, std::string what, bool sends, const Array& data,
             int peer, std::uint64_t slot)
      : connection_(std::move(connection)),
        what_(std::move(what)),
        sends_(sends),
        buffer_(connection_->context()->createUnboundBuffer(data.data, data.bytes())) {
    started_ = Clock::now();
    sends_ ? buffer_->send(peer, slot) : buffer_->recv(peer, slot);
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
        // Gloo reports the timeout and closes the connections.
        if (!over_) wait_in_gloo(lock, std::chrono::milliseconds{0});
      }
      if (error_) std::rethrow_exception(error_);
    });
  }

  /// True if a thread waits or has waited.
  [[nodiscard]] bool claimed() const {
    const std::scoped_lock lock(mutex_);
    return claimed_;
  }

  /// Waits on a thread of PostedCalls without a time limit, unless the caller waits already.
  void attend() {
    constexpr std::chrono::hours kForever{24 * 365};
    std::unique_lock lock(mutex_);
    if (claimed_) return;
    attended_ = true;
    wait_in_gloo(lock, kForever);
    attended_ = false;
    changed_.notify_all();
  }

  /// Takes the memory from gloo, whether the call is over or not. `retired` destroys the buffer of a call
  /// that is over: gloo's destructor yields until gloo's device thread has released the buffer. A caller with
  /// higher priority on the same core would yield without effect, until the system stops it after a second.
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

  void abort_in_gloo() { sends_ ? buffer_->abortWaitSend() : buffer_->abortWaitRecv(); }

  std::shared_ptr<GlooConnection> connection_;
  std::string what_;
  bool sends_;
  std::unique_ptr<gloo::transport::UnboundBuffer> buffer_;
  bool claimed_ = false;   ///< a thread waits or has waited in gloo
  bool attended_ = false;  ///< a thread of PostedCalls does
};

/// Threads that wait for posted calls, so that the end of each is observed while its caller is busy: one per
/// call in progress, kept and asleep, and one that assigns calls. A caller has a head start of 300 us. If it
/// waits by then, no other thread wakes up, and a ping-pong costs the same as without these threads. Ends are
/// exact to the wake-up of a thread; an end within the head start that nobody waited for is observed up to
/// about 0.7 ms late. Threads whose calls are in progress at the end are detached.
class PostedCalls {
 public:
  void add(const std::shared_ptr<PostedCall>& call) {
    young_.push([call, attending = attending_] {
      constexpr std::chrono::microseconds kHeadStart{300};
      if (PostedCall::Clock::now() < call->started() + kHeadStart) std::this_thread::sleep_for(kHeadStart);
      if (!call->claimed()) attending->push([call] { call->attend(); });
    });
  }
  /// Queue that destroys buffers of calls that are over.
  [[nodiscard]] const std::shared_ptr<WorkQueue>& retired() const { return retired_; }

 private:
  std::shared_ptr<WorkQueue> attending_ =
      std::make_shared<WorkQueue>(0, std::numeric_limits<std::size_t>::max());
  WorkQueue young_{0, 1};
  /// One thread from the start on, with the priority that the process had then.
  std::shared_ptr<WorkQueue> retired_ = std::make_shared<WorkQueue>(1, 1);
};

}  // namespace stepcast
