#pragma once

#include <functional>
#include <memory>

#include "runner/backend/backend.hpp"

namespace stepcast {

/// Communication threads that take calls from one queue in the order of issue, as c10d's ProcessGroupGloo
/// does. The oldest call is under way on every rank, so calls issued in the same order everywhere never wait
/// in a circle.
class WorkQueue {
 public:
  explicit WorkQueue(int workers);
  /// Waits for the threads when nothing is under way; else leaves them behind: they may be blocked on a dead
  /// peer.
  ~WorkQueue();
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;
  WorkQueue(WorkQueue&&) = delete;
  WorkQueue& operator=(WorkQueue&&) = delete;

  /// Queues a call; what it throws is thrown again by Work::wait.
  WorkPtr push(std::function<void()> call);

  [[nodiscard]] bool idle() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace stepcast
