#include "runner/execute/memory_account.hpp"

#include <cstddef>
#include <mutex>
#include <numeric>

namespace stepcast {
namespace {

/// What all threads of this process hold, under one lock: an allocation costs far more than taking it.
struct Books {
  std::mutex mutex;
  MemoryBytes live{};
  MemoryBytes at_peak{};
  double peak = 0.0;
};

Books& books() {
  static Books one;
  return one;
}

int& category_of_thread() {
  thread_local int category = kUncountedMemory;
  return category;
}

}  // namespace

int memory_category_of_thread() { return category_of_thread(); }

void account_memory(int category, double bytes) {
  if (category == kUncountedMemory) return;
  Books& account = books();
  const std::lock_guard lock(account.mutex);
  account.live[static_cast<std::size_t>(category)] += bytes;
  if (const double now = total(account.live); now > account.peak) {
    account.peak = now;
    account.at_peak = account.live;
  }
}

MemoryScope::MemoryScope(MemoryCategory category) : before_(category_of_thread()) {
  category_of_thread() = static_cast<int>(category);
}
MemoryScope::~MemoryScope() { category_of_thread() = before_; }

double total(const MemoryBytes& bytes) { return std::accumulate(bytes.begin(), bytes.end(), 0.0); }

MemoryBytes live_memory() {
  const std::lock_guard lock(books().mutex);
  return books().live;
}

MemoryBytes peak_memory() {
  const std::lock_guard lock(books().mutex);
  return books().at_peak;
}

void forget_memory_peak() {
  const std::lock_guard lock(books().mutex);
  books().at_peak = books().live;
  books().peak = total(books().live);
}

}  // namespace stepcast
