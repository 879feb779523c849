#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "runner/control/store.hpp"

namespace stepcast {

/// Who of a job has failed by itself and said so in the store: whoever is silent while others fail is the one that
/// was lost. A store that does not answer within a second counts as gone, and so does rank 0, which may serve it:
/// where its host was cut off, nothing else says so.
class FailureReports {
 public:
  explicit FailureReports(std::shared_ptr<Store> store) : store_(std::move(store)) {}

  /// Tells the others that `rank` (of the job) ends by itself. Never throws.
  void report(int rank);
  /// Those of `ranks` that have not reported a failure of their own after `limit`. Never throws.
  [[nodiscard]] std::vector<int> unreported(std::vector<int> ranks, std::chrono::milliseconds limit);
  /// Whether the store has failed to answer.
  [[nodiscard]] bool store_gone() const { return store_gone_; }

 private:
  std::shared_ptr<Store> store_;
  bool store_gone_ = false;
};

}  // namespace stepcast
