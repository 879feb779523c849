#pragma once

#include <array>

#include "schedule/schedule.hpp"

/// Counts the bytes that tensors hold on this rank, by what they are held for.
namespace stepcast {

/// While it lives, what this thread allocates counts as `category`; what is allocated outside any scope (the
/// samples in host memory) is not counted. Scopes nest.
class MemoryScope {
 public:
  explicit MemoryScope(MemoryCategory category);
  ~MemoryScope();
  MemoryScope& operator=(MemoryScope&&) = delete;

 private:
  int before_;
};

/// Bytes by MemoryCategory.
using MemoryBytes = std::array<double, 5>;
double total(const MemoryBytes& bytes);

/// What is allocated outside any MemoryScope.
inline constexpr int kUncountedMemory = 5;
/// What an allocation of this thread counts as now: a MemoryCategory, or kUncountedMemory.
int memory_category_of_thread();
/// Adds an allocation to the account, or a release as a negative number.
void account_memory(int category, double bytes);

MemoryBytes live_memory();
/// What was held when the total was most since the last call of `forget_memory_peak`.
MemoryBytes peak_memory();
void forget_memory_peak();

}  // namespace stepcast
