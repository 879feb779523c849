#include "runner/nccl/nccl_work.hpp"

#include <utility>

namespace stepcast {
void NcclWork::issued(std::shared_ptr<NcclCommunicator> communicator, CudaEvent start, CudaEvent end) {
  const std::scoped_lock lock(mutex_);
  communicator_ = std::move(communicator);
  start_ = std::move(start);
  end_ = std::move(end);
  state_ = State::kIssued;
  changed_.notify_all();
}

void NcclWork::refused(std::exception_ptr error) {
  const std::scoped_lock lock(mutex_);
  error_ = std::move(error);
  state_ = State::kRefused;
  changed_.notify_all();
}

NcclWork::State NcclWork::state() const {
  const std::scoped_lock lock(mutex_);
  return state_;
}

/// The issuing thread has its own timeout.
void NcclWork::wait_until_issued() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return state_ != State::kQueued; });
  if (error_) std::rethrow_exception(error_);
}

/// Polls short calls, since a sleep takes longer than they do.
void NcclWork::wait() {
  constexpr std::chrono::milliseconds kShort{1};
  constexpr std::chrono::microseconds kPause{50};
  wait_until_issued();
  for (const Clock::time_point begin = Clock::now(); !done();) {
    if (Clock::now() - begin < kShort)
      std::this_thread::yield();
    else
      std::this_thread::sleep_for(kPause);
  }
  if (communicator_->failed()) throw RunError(communicator_->failure());
  require_cuda(cudaEventQuery(end_.get()), what_.c_str());
}

void NcclWork::precede(StreamHandle stream) {
  wait_until_issued();
  require_cuda(cudaStreamWaitEvent(static_cast<cudaStream_t>(stream), end_.get(), 0), "cudaStreamWaitEvent");
}

bool NcclWork::done() const {
  const State now = state();
  if (now != State::kIssued) return now == State::kRefused;
  return communicator_->failed() || cudaEventQuery(end_.get()) != cudaErrorNotReady;
}

bool NcclWork::check() {
  if (done()) return true;
  if (state() != State::kIssued) return false;
  if (const std::string error = communicator_->asynchronous_error(); !error.empty()) {
    communicator_->fail(what_, false, error);
    return true;
  }
  if (running_since_ == Clock::time_point{}) {
    if (cudaEventQuery(start_.get()) == cudaSuccess) running_since_ = Clock::now();
    return false;
  }
  if (Clock::now() - running_since_ < communicator_->timeout()) return false;
  communicator_->fail(what_, true, "");
  return true;
}

NcclWatch::NcclWatch(int device)
    : thread_([this, device](const std::stop_token& stop) { serve(device, stop); }) {}

void NcclWatch::add(std::shared_ptr<NcclWork> work) {
  const std::scoped_lock lock(mutex_);
  works_.push_back(std::move(work));
  if (works_.size() == 1) changed_.notify_all();
}

void NcclWatch::serve(int device, const std::stop_token& stop) {
  constexpr std::chrono::milliseconds kPeriod{10};
  static_cast<void>(cudaSetDevice(device));
  std::unique_lock lock(mutex_);
  while (!stop.stop_requested()) {
    changed_.wait(lock, stop, [this] { return !works_.empty(); });
    const std::vector<std::shared_ptr<NcclWork>> works = works_;
    lock.unlock();
    std::vector<std::shared_ptr<NcclWork>> over;
    for (const std::shared_ptr<NcclWork>& work : works)
      if (work->check()) over.push_back(work);
    lock.lock();
    std::erase_if(works_, [&over](const auto& work) { return std::ranges::find(over, work) != over.end(); });
    changed_.wait_for(lock, stop, kPeriod, [] { return false; });
  }
}

}  // namespace stepcast
