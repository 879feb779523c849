#pragma once

#include <gloo/transport/unbound_buffer.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>

namespace stepcast {

/// A send or receive that gloo's device thread carries out. Gloo tells its end only to a thread that waits
/// for it, and to one alone: the caller, when it waits first, else a thread of PostedCalls.
class PostedCall {
 public:
  using Clock = std::chrono::steady_clock;
  using Buffer = gloo::transport::UnboundBuffer;

  PostedCall(std::unique_ptr<Buffer> buffer, bool sends);
  void post(int peer, std::uint64_t slot);

  /// \throws gloo::IoException when the connection broke or the call is not over after `timeout`; then gloo
  /// closes all connections of the context
  void wait(std::chrono::milliseconds timeout);
  [[nodiscard]] bool over() const;
  /// Whether somebody waits or has waited.
  [[nodiscard]] bool claimed() const;
  [[nodiscard]] Clock::time_point started() const { return started_; }
  /// Valid when over: the instant at which the waiting thread woke.
  [[nodiscard]] Clock::time_point ended() const { return ended_; }

  /// Waits on a thread of PostedCalls, for as long as it takes, unless the caller already does.
  void attend();
  /// Takes the memory from gloo, over or not: the caller is about to lose it.
  void release();

 private:
  bool wait_in_gloo(std::chrono::milliseconds timeout);
  void abort_in_gloo();
  void wait_here(std::unique_lock<std::mutex>& lock, std::chrono::milliseconds timeout);

  std::unique_ptr<Buffer> buffer_;
  bool sends_;
  Clock::time_point started_;
  Clock::time_point ended_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool claimed_ = false;   ///< somebody waits or has waited in gloo
  bool attended_ = false;  ///< a thread of PostedCalls does
  bool over_ = false;
  std::exception_ptr error_;
};

/// Threads that wait for posted calls, so that each is known to be over, and when, although its caller is
/// busy elsewhere: one per call that is under way, kept and asleep, and one that hands calls over. A caller
/// has a head start of 300 us: if it waits by then, no other thread is woken, and a ping-pong costs what it
/// costs without these threads. Ends are exact to a thread's wake-up, except that an end within the head
/// start that nobody waited for is seen when the head start is over, up to about 0.7 ms late.
class PostedCalls {
 public:
  PostedCalls();
  /// Waits for the threads when no call is under way; else leaves them behind until their calls are over or
  /// released.
  ~PostedCalls();
  PostedCalls(const PostedCalls&) = delete;
  PostedCalls& operator=(const PostedCalls&) = delete;
  PostedCalls(PostedCalls&&) = delete;
  PostedCalls& operator=(PostedCalls&&) = delete;

  void add(std::shared_ptr<PostedCall> call);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace stepcast
