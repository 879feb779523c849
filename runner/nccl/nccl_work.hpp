#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/ranges.hpp"
#include "runner/backend/backend.hpp"
#include "runner/cuda/cuda_runtime.hpp"
#include "runner/nccl/nccl_communicator.hpp"

namespace stepcast {

/// Call that is enqueued on a stream of the device, or about to be.
class NcclWork : public Work {
 public:
  using Clock = std::chrono::steady_clock;

  NcclWork(std::string what, std::shared_ptr<DeviceTimeline> timeline)
      : what_(std::move(what)), timeline_(std::move(timeline)) {}

  /// Enqueued call between two events, or the error of one that was not enqueued.
  struct Issued {
    std::shared_ptr<NcclCommunicator> communicator{};
    CudaEvent start{}, end{};
    std::exception_ptr error{};
  };
  void set_issued(Issued call) { promise_.set_value(std::move(call)); }

  /// Polls short calls, since a sleep takes longer than they do.
  void wait() override {
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

  void precede(StreamHandle stream) override {
    require_cuda(cudaStreamWaitEvent(static_cast<cudaStream_t>(stream), issued().end.get(), 0),
                 "cudaStreamWaitEvent");
  }

  [[nodiscard]] bool done() const override {
    if (!is_issued()) return false;
    const Issued& call = issued_.get();
    return call.error || call.communicator->failed() || cudaEventQuery(call.end.get()) != cudaErrorNotReady;
  }

  [[nodiscard]] Clock::time_point started() const override { return timeline_->time_of(issued_.get().start); }
  [[nodiscard]] Clock::time_point ended() const override { return timeline_->time_of(issued_.get().end); }

  /// Aborts the communicator if the library reports an error, or if the call has been at the head of its
  /// stream for longer than the timeout. Waiting for other work of the device does not count. \return true if
  /// the call is over
  bool check() {
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

 private:
  [[nodiscard]] bool is_issued() const {
    return issued_.wait_for(std::chrono::seconds{0}) == std::future_status::ready;
  }

  /// Waits for the issuing thread, which has its own timeout.
  [[nodiscard]] const Issued& issued() const {
    const Issued& call = issued_.get();
    if (call.error) std::rethrow_exception(call.error);
    return call;
  }

  std::string what_;
  std::shared_ptr<DeviceTimeline> timeline_;
  std::promise<Issued> promise_;
  std::shared_future<Issued> issued_ = promise_.get_future().share();
  Clock::time_point running_since_{};  ///< as observed by check()
};

/// Checks the calls of one rank, so that an error or a lost peer ends them although no thread waits for them.
class NcclWatch {
 public:
  explicit NcclWatch(int device)
      : thread_([this, device](const std::stop_token& stop) { serve(device, stop); }) {}
  NcclWatch& operator=(NcclWatch&&) = delete;

  void add(std::shared_ptr<NcclWork> work) {
    const std::scoped_lock lock(mutex_);
    works_.push_back(std::move(work));
    if (works_.size() == 1) changed_.notify_all();
  }

 private:
  void serve(int device, const std::stop_token& stop) {
    constexpr std::chrono::milliseconds kPeriod{10};
    static_cast<void>(cudaSetDevice(device));
    std::unique_lock lock(mutex_);
    while (!stop.stop_requested()) {
      changed_.wait(lock, stop, [this] { return !works_.empty(); });
      const std::vector<std::shared_ptr<NcclWork>> works = works_;
      lock.unlock();
      const auto over = filtered(works, [](const auto& work) { return work->check(); });
      lock.lock();
      std::erase_if(works_,
                    [&over](const auto& work) { return std::ranges::find(over, work) != over.end(); });
      changed_.wait_for(lock, stop, kPeriod, [] { return false; });
    }
  }

  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::vector<std::shared_ptr<NcclWork>> works_;
  std::jthread thread_;
};

}  // namespace stepcast
