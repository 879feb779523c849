#include "runner/execute/memory_account.hpp"

namespace stepcast {
namespace {

MemoryAccount*& account_of_thread() {
  static MemoryAccount of_process;
  thread_local MemoryAccount* account = &of_process;
  return account;
}

std::optional<MemoryCategory>& category_of_thread() {
  thread_local std::optional<MemoryCategory> category;
  return category;
}

}  // namespace

void MemoryAccount::add(MemoryCategory category, double bytes) {
  const std::lock_guard lock(mutex_);
  live_[category] += bytes;
  if (const double now = total(live_); now > peak_) {
    peak_ = now;
    at_peak_ = live_;
  }
}

MemoryBytes MemoryAccount::live() const {
  const std::lock_guard lock(mutex_);
  return live_;
}

MemoryBytes MemoryAccount::peak() const {
  const std::lock_guard lock(mutex_);
  return at_peak_;
}

void MemoryAccount::forget_peak() {
  const std::lock_guard lock(mutex_);
  at_peak_ = live_;
  peak_ = total(live_);
}

MemoryAccount& memory_account() { return *account_of_thread(); }

std::optional<MemoryCategory> memory_category() { return category_of_thread(); }

AccountScope::AccountScope(MemoryAccount& account) : ThreadScope(account_of_thread(), &account) {}

MemoryScope::MemoryScope(std::optional<MemoryCategory> category)
    : ThreadScope(category_of_thread(), category) {}

}  // namespace stepcast
