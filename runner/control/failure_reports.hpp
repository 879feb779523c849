#pragma once

#include <chrono>
#include <exception>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
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
  void report(int rank) {
    ask_store([store = store_, key = failed_key(rank)] {
      store->set(key, {'1'});
      return true;
    });
  }

  /// Those of `ranks` that have not reported a failure after `limit`. Never throws.
  [[nodiscard]] std::vector<int> unreported(std::vector<int> ranks, std::chrono::milliseconds limit) {
    using Clock = std::chrono::steady_clock;
    constexpr std::chrono::milliseconds kPause{20};
    const Clock::time_point deadline = Clock::now() + limit;
    while (!store_gone_ && !ranks.empty()) {
      if (const auto silent =
              ask_store([store = store_, ranks] { return missing_ranks(*store, ranks, failed_key); }))
        ranks = *silent;
      if (Clock::now() >= deadline) break;
      if (!ranks.empty()) std::this_thread::sleep_for(kPause);
    }
    return ranks;
  }

  /// True if the store has failed to reply.
  [[nodiscard]] bool store_gone() const { return store_gone_; }

 private:
  static std::string failed_key(int rank) { return "failed/" + std::to_string(rank); }

  /// Calls `ask` on its own thread and returns its result. Nothing if it throws or takes too long, which
  /// leaves the thread behind: the store is gone. \pre `ask` owns what it uses
  template <class Ask>
  std::optional<std::invoke_result_t<Ask>> ask_store(Ask ask) {
    // The TCP connection to a host that was cut off stays open for many minutes.
    constexpr std::chrono::milliseconds kLongest{1000};
    std::packaged_task<std::invoke_result_t<Ask>()> task(std::move(ask));
    auto answer = task.get_future();
    std::thread(std::move(task)).detach();
    try {
      if (answer.wait_for(kLongest) == std::future_status::ready) return answer.get();
    } catch (const std::exception&) {  // rank 0 has ended, and the store with it
    }
    store_gone_ = true;
    return std::nullopt;
  }

  std::shared_ptr<Store> store_;
  bool store_gone_ = false;
};

}  // namespace stepcast
