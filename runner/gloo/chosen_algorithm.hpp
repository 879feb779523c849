#pragma once

#include <gloo/context.h>

#include <cstddef>
#include <cstdint>

#include "runner/gloo/gloo_bytes.hpp"
#include "sim/collectives/algorithm.hpp"

namespace stepcast {

/// The array of one rank, in blocks and in place, as sim/collectives/algorithm.hpp lays it out.
struct ArrayInPlace {
  void* data = nullptr;
  std::size_t count = 0;
  std::size_t element_size = 0;
  void (*sum)(void* result, const void* a, const void* b, std::size_t count) = nullptr;
};

/// Executes the steps of `algorithm` over tagged messages: the very steps that sim/replay moves in simulated
/// time, each posted when those before it are over. A message that is added, or arrives where the same step
/// still sends from, waits in scratch memory; others arrive in their place. Counts what it sends in `sent`.
/// \throws gloo::IoException
void run_algorithm(gloo::Context& context, const Algorithm& algorithm, const ArrayInPlace& array,
                   std::uint32_t tag, SentBytes& sent);

/// All-to-all by `algorithm`: `in` and `out` hold one block of `block_bytes` per rank, by rank.
void run_all_to_all(gloo::Context& context, const Algorithm& algorithm, const void* in, void* out,
                    std::size_t block_bytes, std::uint32_t tag, SentBytes& sent);

}  // namespace stepcast
