#include "runner/gloo/posted_calls.hpp"

#include <deque>
#include <thread>
#include <utility>
#include <vector>

namespace stepcast {
namespace {

constexpr std::chrono::microseconds kHeadStart{300};

}  // namespace

PostedCall::PostedCall(std::unique_ptr<Buffer> buffer, bool sends)
    : buffer_(std::move(buffer)), sends_(sends) {}

void PostedCall::post(int peer, std::uint64_t slot) {
  started_ = Clock::now();
  if (sends_) {
    buffer_->send(peer, slot);
  } else {
    buffer_->recv(peer, slot);
  }
}

bool PostedCall::wait_in_gloo(std::chrono::milliseconds timeout) {
  return sends_ ? buffer_->waitSend(timeout) : buffer_->waitRecv(timeout);
}

void PostedCall::abort_in_gloo() {
  if (sends_) {
    buffer_->abortWaitSend();
  } else {
    buffer_->abortWaitRecv();
  }
}

void PostedCall::wait_here(std::unique_lock<std::mutex>& lock, std::chrono::milliseconds timeout) {
  claimed_ = true;
  lock.unlock();
  std::exception_ptr error;
  bool finished = true;
  try {
    finished = wait_in_gloo(timeout);
  } catch (...) {
    error = std::current_exception();
  }
  const Clock::time_point now = Clock::now();
  lock.lock();
  if (finished) {
    ended_ = now;
    error_ = error;
    over_ = true;
  }
}

void PostedCall::wait(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  if (!claimed_) {
    wait_here(lock, timeout);
  } else if (!changed_.wait_for(lock, timeout, [&] { return over_; })) {
    abort_in_gloo();
    changed_.wait(lock, [&] { return !attended_; });
    // What is late now is late: gloo says so, and closes the connections.
    if (!over_) wait_here(lock, std::chrono::milliseconds{0});
  }
  if (error_) std::rethrow_exception(error_);
}

bool PostedCall::over() const {
  const std::scoped_lock lock(mutex_);
  return over_;
}

bool PostedCall::claimed() const {
  const std::scoped_lock lock(mutex_);
  return claimed_;
}

void PostedCall::attend() {
  constexpr std::chrono::hours kForever{24 * 365};
  std::unique_lock lock(mutex_);
  if (claimed_) return;
  attended_ = true;
  wait_here(lock, kForever);
  attended_ = false;
  changed_.notify_all();
}

void PostedCall::release() {
  std::unique_lock lock(mutex_);
  claimed_ = true;
  if (attended_) abort_in_gloo();
  changed_.wait(lock, [&] { return !attended_; });
  buffer_.reset();
}

struct PostedCalls::State {
  std::mutex mutex;
  std::condition_variable posted;  ///< to the thread that hands over
  std::condition_variable handed;  ///< to those that wait in gloo
  std::deque<std::shared_ptr<PostedCall>> young;
  std::deque<std::shared_ptr<PostedCall>> due;
  std::vector<std::thread> threads;
  std::size_t attending = 0;
  bool stopping = false;

  static void hand_over(const std::shared_ptr<State>& state);
  void attend();
};

void PostedCalls::State::hand_over(const std::shared_ptr<State>& state) {
  std::unique_lock lock(state->mutex);
  while (true) {
    state->posted.wait(lock, [&] { return state->stopping || !state->young.empty(); });
    if (state->stopping) return;
    lock.unlock();
    std::this_thread::sleep_for(kHeadStart);
    lock.lock();
    const auto posted_before = PostedCall::Clock::now() - kHeadStart;
    while (!state->young.empty() && state->young.front()->started() <= posted_before) {
      if (!state->young.front()->claimed()) state->due.push_back(std::move(state->young.front()));
      state->young.pop_front();
    }
    // The first thread is this one.
    while (!state->stopping && state->threads.size() - 1 < state->attending + state->due.size())
      state->threads.emplace_back([state] { state->attend(); });
    if (!state->due.empty()) state->handed.notify_all();
  }
}

void PostedCalls::State::attend() {
  std::unique_lock lock(mutex);
  while (true) {
    handed.wait(lock, [&] { return stopping || !due.empty(); });
    if (stopping) return;
    std::shared_ptr<PostedCall> call = std::move(due.front());
    due.pop_front();
    ++attending;
    lock.unlock();
    call->attend();
    call.reset();
    lock.lock();
    --attending;
  }
}

PostedCalls::PostedCalls() : state_(std::make_shared<State>()) {}

PostedCalls::~PostedCalls() {
  std::vector<std::thread> threads;
  bool idle = false;
  {
    const std::scoped_lock lock(state_->mutex);
    state_->stopping = true;
    threads.swap(state_->threads);
    idle = state_->attending == 0;
  }
  state_->posted.notify_all();
  state_->handed.notify_all();
  for (std::thread& thread : threads) {
    if (idle) {
      thread.join();
    } else {
      thread.detach();
    }
  }
}

void PostedCalls::add(std::shared_ptr<PostedCall> call) {
  {
    const std::scoped_lock lock(state_->mutex);
    state_->young.push_back(std::move(call));
    if (state_->threads.empty()) state_->threads.emplace_back([state = state_] { State::hand_over(state); });
  }
  state_->posted.notify_one();
}

}  // namespace stepcast
