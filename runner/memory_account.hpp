#pragma once

#include <array>

#include "sim/core/schedule.hpp"

/// Counts the bytes that tensors hold on this rank, by what they are held for. Includes no LibTorch.
namespace stepcast {

/// Takes the place of LibTorch's allocator for processors, for the life of the process. Every array is
/// preceded by a header that says its size and category. What libraries take from the heap on their own
/// (BLAS, kernels' mapped scratch) is not seen. Freed memory stays with the process. \pre no tensor exists
/// yet
void install_counting_allocator();

/// While it lives, what this thread allocates counts as `category`; what is allocated outside any scope (the
/// samples in host memory) is not counted. Scopes nest.
class MemoryScope {
 public:
  explicit MemoryScope(MemoryCategory category);
  ~MemoryScope();
  MemoryScope(const MemoryScope&) = delete;
  MemoryScope& operator=(const MemoryScope&) = delete;
  MemoryScope(MemoryScope&&) = delete;
  MemoryScope& operator=(MemoryScope&&) = delete;

 private:
  int before_;
};

/// Bytes by MemoryCategory.
using MemoryBytes = std::array<double, 5>;
double total(const MemoryBytes& bytes);

MemoryBytes live_memory();
/// What was held when the total was most since the last call of `forget_memory_peak`.
MemoryBytes peak_memory();
void forget_memory_peak();

}  // namespace stepcast
