#pragma once

#include <gloo/context.h>

#include <cstddef>
#include <cstdint>

namespace stepcast {

/// What a ring reduce-scatter works on: `in` holds one part of `count` elements per rank.
struct ReduceScatterCall {
  const void* in = nullptr;
  void* out = nullptr;
  std::size_t count = 0;
  std::size_t element_size = 0;
  void (*sum)(void* result, const void* a, const void* b, std::size_t count) = nullptr;
};

/// Ring reduce-scatter over tagged point-to-point messages, since Gloo has none among its functions:
///
///     n - 1 steps; in step s rank r sends its partial sum of part (r - 1 - s) mod n to rank r + 1 and adds
///     what rank r - 1 sent to its own part (r - 2 - s) mod n; after the last step it holds the whole sum of
///     part r.
///
/// Parts travel in at least two segments of at most 1 MiB, two receives posted ahead, so that one segment is
/// on the wire while another is added: the geometry of gloo::allreduce. Bytes sent per rank: (n - 1) * part.
/// \throws gloo::IoException
void ring_reduce_scatter(gloo::Context& context, const ReduceScatterCall& call, std::uint32_t tag);

}  // namespace stepcast
