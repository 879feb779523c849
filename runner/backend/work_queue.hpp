#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "runner/backend/backend.hpp"

namespace stepcast {

/// Call that some thread completes, with its times.
class TimedWork : public Work {
 public:
  using Clock = std::chrono::steady_clock;

  [[nodiscard]] bool done() const override {
    const std::scoped_lock lock(mutex_);
    return over_;
  }
  [[nodiscard]] Clock::time_point started() const override { return started_; }
  [[nodiscard]] Clock::time_point ended() const override { return ended_; }

 protected:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
  std::exception_ptr error_;
  Clock::time_point started_, ended_;
};

class QueuedWork : public TimedWork {
 public:
  explicit QueuedWork(std::function<void()> call) : call_(std::move(call)) {}

  void run() {
    started_ = Clock::now();
    std::exception_ptr error;
    try {
      call_();
    } catch (...) {
      error = std::current_exception();
    }
    call_ = nullptr;
    ended_ = Clock::now();
    const std::scoped_lock lock(mutex_);
    error_ = error;
    over_ = true;
    changed_.notify_all();
  }

  void wait() override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return over_; });
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::function<void()> call_;
};

/// Threads that take calls from one queue in the order of issue, as c10d's ProcessGroupGloo does. The oldest
/// call is in progress on every rank, so that calls issued in the same order never deadlock.
class WorkQueue {
 public:
  /// \param workers from the start on \param most how many there may become while all are busy
  WorkQueue(std::size_t workers, std::size_t most) : state_(std::make_shared<State>()), most_(most) {
    while (state_->threads.size() < workers) start_thread();
  }
  /// Joins the threads if no call is in progress. Else detaches them: they may be blocked on a lost peer.
  ~WorkQueue() {
    const bool finished = idle();
    std::vector<std::thread> threads;
    {
      const std::scoped_lock lock(state_->mutex);
      state_->stopping = true;
      threads.swap(state_->threads);
    }
    state_->changed.notify_all();
    for (std::thread& thread : threads) finished ? thread.join() : thread.detach();
  }
  WorkQueue& operator=(WorkQueue&&) = delete;

  /// Queues a call; Work::wait throws its exception.
  WorkPtr push(std::function<void()> call) {
    auto work = std::make_shared<QueuedWork>(std::move(call));
    {
      const std::scoped_lock lock(state_->mutex);
      state_->waiting.push_back(work);
      if (state_->threads.size() < std::min(most_, state_->running + state_->waiting.size())) start_thread();
    }
    state_->changed.notify_one();
    return work;
  }

  [[nodiscard]] bool idle() const {
    const std::scoped_lock lock(state_->mutex);
    return state_->running == 0 && state_->waiting.empty();
  }

 private:
  /// Shared with detached threads.
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::shared_ptr<QueuedWork>> waiting;
    std::vector<std::thread> threads;
    std::size_t running = 0;
    bool stopping = false;

    void serve() {
      std::unique_lock lock(mutex);
      while (true) {
        changed.wait(lock, [&] { return stopping || !waiting.empty(); });
        if (stopping) return;
        std::shared_ptr<QueuedWork> work = std::move(waiting.front());
        waiting.pop_front();
        ++running;
        lock.unlock();
        work->run();
        work.reset();
        lock.lock();
        --running;
      }
    }
  };

  void start_thread() {
    state_->threads.emplace_back([state = state_] { state->serve(); });
  }

  std::shared_ptr<State> state_;
  std::size_t most_;
};

}  // namespace stepcast
