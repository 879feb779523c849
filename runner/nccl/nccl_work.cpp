#include "runner/nccl/nccl_work.hpp"

#include <utility>

namespace stepcast {

/// Waits for the issuing thread, which has its own timeout.
const NcclWork::Issued& NcclWork::issued() const {
  const Issued& call = issued_.get();
  if (call.error) std::rethrow_exception(call.error);
  return call;
}

/// Polls short calls, since a sleep takes longer than they do.
void NcclWork::wait() {
  constexpr std::chrono::milliseconds kShort{1};
  constexpr std::chrono::microseconds kPause{50};
  const Issued& call = issued();
  for (const Clock::time_point begin = Clock::now(); !done();) {
    if (Clock::now() - begin < kShort)
      std::this_thread::yield();
    else
      std::this_thread::sleep_for(kPause);
  }
  if (call.communicator->failed()) throw RunError(call.communicator->failure());
  require_cuda(cudaEventQuery(call.end.get()), what_.c_str());
}

void NcclWork::precede(StreamHandle stream) {
  require_cuda(cudaStreamWaitEvent(static_cast<cudaStream_t>(stream), issued().end.get(), 0),
               "cudaStreamWaitEvent");
}

bool NcclWork::done() const {
  if (!is_issued()) return false;
  const Issued& call = issued_.get();
  return call.error || call.communicator->failed() || cudaEventQuery(call.end.get()) != cudaErrorNotReady;
}

bool NcclWork::check() {
  if (!is_issued()) return false;
  if (done()) return true;
  const Issued& call = issued_.get();
  if (const std::string error = call.communicator->asynchronous_error(); !error.empty()) {
    call.communicator->fail(what_, false, error);
    return true;
  }
  if (running_since_ == Clock::time_point{}) {
    if (cudaEventQuery(call.start.get()) == cudaSuccess) running_since_ = Clock::now();
    return false;
  }
  if (Clock::now() - running_since_ < call.communicator->timeout()) return false;
  call.communicator->fail(what_, true, "");
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
