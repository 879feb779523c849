#include "runner/gloo/work_queue.hpp"

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace stepcast {
namespace {

using Clock = std::chrono::steady_clock;

class QueuedWork : public Work {
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
    done_ = true;
    finished_.notify_all();
  }

  void wait() override {
    std::unique_lock lock(mutex_);
    finished_.wait(lock, [&] { return done_; });
    if (error_) std::rethrow_exception(error_);
  }
  [[nodiscard]] bool done() const override {
    const std::scoped_lock lock(mutex_);
    return done_;
  }
  [[nodiscard]] Clock::time_point started() const override { return started_; }
  [[nodiscard]] Clock::time_point ended() const override { return ended_; }

 private:
  std::function<void()> call_;
  mutable std::mutex mutex_;
  std::condition_variable finished_;
  std::exception_ptr error_;
  bool done_ = false;
  Clock::time_point started_;
  Clock::time_point ended_;
};

}  // namespace

struct WorkQueue::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::shared_ptr<QueuedWork>> waiting;
  std::vector<std::thread> threads;
  int running = 0;
  bool stopping = false;

  void serve() {
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [&] { return stopping || !waiting.empty(); });
      if (stopping) return;
      const std::shared_ptr<QueuedWork> work = std::move(waiting.front());
      waiting.pop_front();
      ++running;
      lock.unlock();
      work->run();
      lock.lock();
      --running;
    }
  }
};

WorkQueue::WorkQueue(int workers) : state_(std::make_shared<State>()) {
  for (int worker = 0; worker < workers; ++worker)
    state_->threads.emplace_back([state = state_] { state->serve(); });
}

WorkQueue::~WorkQueue() {
  const bool finished = idle();
  std::vector<std::thread> threads;
  {
    const std::scoped_lock lock(state_->mutex);
    state_->stopping = true;
    threads.swap(state_->threads);
  }
  state_->changed.notify_all();
  for (std::thread& thread : threads) {
    if (finished) {
      thread.join();
    } else {
      thread.detach();
    }
  }
}

WorkPtr WorkQueue::push(std::function<void()> call) {
  auto work = std::make_shared<QueuedWork>(std::move(call));
  {
    const std::scoped_lock lock(state_->mutex);
    state_->waiting.push_back(work);
  }
  state_->changed.notify_one();
  return work;
}

bool WorkQueue::idle() const {
  const std::scoped_lock lock(state_->mutex);
  return state_->running == 0 && state_->waiting.empty();
}

}  // namespace stepcast
