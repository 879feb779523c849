#pragma once

#include <mutex>
#include <optional>
#include <utility>

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

/// Category of the calling thread's allocations; empty outside any MemoryScope.
std::optional<MemoryCategory> memory_category();

/// Sets a value of the calling thread while it lives. Scopes nest.
template <class Value>
class ThreadScope {
 public:
  ThreadScope(Value& place, Value value) : place_(place), before_(std::exchange(place, value)) {}
  ~ThreadScope() { place_ = before_; }
  ThreadScope& operator=(ThreadScope&&) = delete;

 private:
  Value& place_;
  Value before_;
};

/// Sets the account of the calling thread, for ranks that are threads of one process.
/// \pre the account outlives everything allocated in it
struct AccountScope : ThreadScope<MemoryAccount*> {
  explicit AccountScope(MemoryAccount& account);
};

/// Sets the category of what the calling thread allocates. Allocations outside any scope (samples in host
/// memory) do not count.
struct MemoryScope : ThreadScope<std::optional<MemoryCategory>> {
  /// \param category empty: allocations do not count, as host memory
  explicit MemoryScope(std::optional<MemoryCategory> category);
};

}  // namespace stepcast
