#pragma once

#include <chrono>
#include <condition_variable>
#include <exception>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "runner/backend/backend.hpp"
#include "runner/cuda/device_timeline.hpp"
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

  void wait() override;
  void precede(StreamHandle stream) override;
  [[nodiscard]] bool done() const override;
  [[nodiscard]] Clock::time_point started() const override { return timeline_->time_of(issued_.get().start); }
  [[nodiscard]] Clock::time_point ended() const override { return timeline_->time_of(issued_.get().end); }

  /// Aborts the communicator if the library reports an error, or if the call has been at the head of its
  /// stream for longer than the timeout. Waiting for other work of the device does not count. \return true if
  /// the call is over
  bool check();

 private:
  [[nodiscard]] bool is_issued() const {
    return issued_.wait_for(std::chrono::seconds{0}) == std::future_status::ready;
  }
  [[nodiscard]] const Issued& issued() const;

  std::string what_;
  std::shared_ptr<DeviceTimeline> timeline_;
  std::promise<Issued> promise_;
  std::shared_future<Issued> issued_ = promise_.get_future().share();
  Clock::time_point running_since_{};  ///< as observed by check()
};

/// Checks the calls of one rank, so that an error or a lost peer ends them although no thread waits for them.
class NcclWatch {
 public:
  explicit NcclWatch(int device);
  NcclWatch& operator=(NcclWatch&&) = delete;
  void add(std::shared_ptr<NcclWork> work);

 private:
  void serve(int device, const std::stop_token& stop);

  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::vector<std::shared_ptr<NcclWork>> works_;
  std::jthread thread_;
};

}  // namespace stepcast
