#include "runner/control/failure_reports.hpp"

#include <exception>
#include <future>
#include <optional>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>

namespace stepcast {
namespace {

std::string failed_key(int rank) { return "failed/" + std::to_string(rank); }

/// Longest time for a reply of the store. The TCP connection to a host that was cut off stays open for many
/// minutes.
constexpr std::chrono::milliseconds kStoreAnswer{1000};

/// Calls `ask` on its own thread and returns its result; nothing if it throws or takes too long, which leaves
/// the thread behind. \pre `ask` owns what it uses
template <class Ask>
std::optional<std::invoke_result_t<Ask>> within(std::chrono::milliseconds limit, Ask ask) {
  std::packaged_task<std::invoke_result_t<Ask>()> task(std::move(ask));
  auto answer = task.get_future();
  std::thread(std::move(task)).detach();
  if (answer.wait_for(limit) != std::future_status::ready) return std::nullopt;
  try {
    return answer.get();
  } catch (const std::exception&) {  // rank 0 has ended, and the store with it
    return std::nullopt;
  }
}

}  // namespace

void FailureReports::report(int rank) {
  const auto told = within(kStoreAnswer, [store = store_, key = failed_key(rank)] {
    store->set(key, {'1'});
    return true;
  });
  if (!told) store_gone_ = true;
}

std::vector<int> FailureReports::unreported(std::vector<int> ranks, std::chrono::milliseconds limit) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::milliseconds kPause{20};
  const Clock::time_point deadline = Clock::now() + limit;
  while (!store_gone_ && !ranks.empty()) {
    const auto silent =
        within(kStoreAnswer, [store = store_, ranks] { return missing_ranks(*store, ranks, failed_key); });
    if (!silent)
      store_gone_ = true;
    else
      ranks = *silent;
    if (Clock::now() >= deadline) break;
    if (!ranks.empty()) std::this_thread::sleep_for(kPause);
  }
  return ranks;
}

}  // namespace stepcast
