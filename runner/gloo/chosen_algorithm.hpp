#pragma once

#include <gloo/context.h>

#include <cstddef>
#include <cstdint>

#include "runner/backend/backend.hpp"
#include "sim/collectives/algorithm.hpp"

namespace stepcast {

/// result[i] = a[i] + b[i], or the larger of both, with the signature of gloo's reductions.
using Sum = void (*)(void* result, const void* a, const void* b, std::size_t count);

/// Array of one rank, in blocks and in place, as in sim/collectives/algorithm.hpp.
struct ArrayInPlace {
  void* data = nullptr;
  std::size_t count = 0;
  std::size_t element_size = 0;
  Sum sum = nullptr;
};

/// Executes the steps of `algorithm` over tagged messages: the steps that sim/replay simulates, each posted
/// when those before it are over. A message uses scratch memory if it is added, or if it arrives where the
/// same step still sends from. Counts sent bytes in `sent`. \throws gloo::IoException
void run_algorithm(gloo::Context& context, const Algorithm& algorithm, const ArrayInPlace& array,
                   std::uint32_t tag, SentBytes& sent);

/// All-to-all by `algorithm`: `in` and `out` have one block of `block_bytes` per rank, by rank.
void run_all_to_all(gloo::Context& context, const Algorithm& algorithm, const void* in, void* out,
                    std::size_t block_bytes, std::uint32_t tag, SentBytes& sent);

/// Sends `bytes` at `in` to the next rank while as many arrive at `out` from the previous one. \throws
/// gloo::IoException
void ring_shift(gloo::Context& context, const void* in, void* out, std::size_t bytes, std::uint32_t tag);

/// Ring reduce-scatter of `in`, one part per rank of the size of `out`, which Gloo lacks:
///
///     n - 1 steps; in step s rank r sends its partial sum of part (r - 1 - s) mod n to rank r + 1 and adds
///     the array of rank r - 1 to its own part (r - 2 - s) mod n; after the last step it has the sum
///     of part r.
///
/// Parts are sent in at least two segments of at most 1 MiB, with two receives posted ahead, so that one
/// segment is sent while another is added: the geometry of gloo::allreduce. Bytes sent per rank: (n - 1) *
/// part. `in` of another type than `type`, that of `out`, is converted first. \throws gloo::IoException
void ring_reduce_scatter(gloo::Context& context, const ArrayInPlace& out, const Array& in, DataType type,
                         std::uint32_t tag);

}  // namespace stepcast
