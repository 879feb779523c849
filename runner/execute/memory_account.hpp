#pragma once

#include <mutex>
#include <optional>

#include "schedule/kinds.hpp"

/// Bytes that the tensors of a rank hold, by category.
namespace stepcast {

/// Account of one rank. An allocation counts in the account of the thread that made it, whichever thread
/// frees it.
class MemoryAccount {
 public:
  /// \param bytes negative for a release
  void add(MemoryCategory category, double bytes);
  [[nodiscard]] MemoryBytes live() const;
  /// Bytes held when the total was highest since the last forget_peak().
  [[nodiscard]] MemoryBytes peak() const;
  void forget_peak();

 private:
  mutable std::mutex mutex_;
  MemoryBytes live_, at_peak_;
  double peak_ = 0.0;
};

/// Account of the calling thread: the one of the process, unless an AccountScope set another.
MemoryAccount& memory_account();

/// Sets the account of the calling thread while it lives, for ranks that are threads of one process.
/// \pre the account outlives everything allocated in it
class AccountScope {
 public:
  explicit AccountScope(MemoryAccount& account);
  ~AccountScope();
  AccountScope& operator=(AccountScope&&) = delete;

 private:
  MemoryAccount* before_;
};

/// Sets the category of what the calling thread allocates while it lives. Scopes nest. Allocations outside
/// any scope (samples in host memory) do not count.
class MemoryScope {
 public:
  /// \param category empty: allocations do not count, as host memory
  explicit MemoryScope(std::optional<MemoryCategory> category);
  ~MemoryScope();
  MemoryScope& operator=(MemoryScope&&) = delete;

 private:
  std::optional<MemoryCategory> before_;
};

/// Category of the calling thread's allocations; empty outside any MemoryScope.
std::optional<MemoryCategory> memory_category();

}  // namespace stepcast
