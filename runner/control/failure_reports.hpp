#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "runner/control/store.hpp"

namespace stepcast {

/// Failures that the ranks of a job report in the store: a rank that is silent while others report failures
/// was lost. A store that does not reply within a second counts as gone, and so does rank 0, which may serve
/// it.
class FailureReports {
 public:
  explicit FailureReports(std::shared_ptr<Store> store) : store_(std::move(store)) {}

  /// Reports that `rank` (of the job) fails by itself. Never throws.
  void report(int rank);
  /// Those of `ranks` that have not reported a failure after `limit`. Never throws.
  [[nodiscard]] std::vector<int> unreported(std::vector<int> ranks, std::chrono::milliseconds limit);
  /// True if the store has failed to reply.
  [[nodiscard]] bool store_gone() const { return store_gone_; }

 private:
  std::shared_ptr<Store> store_;
  bool store_gone_ = false;
};

}  // namespace stepcast
