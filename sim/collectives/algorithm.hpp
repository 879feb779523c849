#pragma once

#include <functional>
#include <optional>
#include <string>

#include "sim/core/registry.hpp"
#include "sim/core/schedule.hpp"

/// Collective algorithms: which point-to-point messages a collective is made of, in which order, and what
/// they cost in closed form. One file each; the laws in tests/collectives hold every entry.
namespace stepcast {

/// One collective over `ranks` ranks. `message` is the total array, never the shard.
struct CollectiveCall {
  Bytes message;
  int ranks = 1;
  int root = 0;              ///< ignored by kinds without a root
  double element_bytes = 4;  ///< arrays are only cut between elements
};

/// One step of one rank: at most one message sent and one received, posted together.
struct Exchange {
  int to = -1;  ///< -1: sends nothing
  Bytes sent{};
  int from = -1;  ///< -1: receives nothing
  Bytes received{};
  bool reduce = false;  ///< what arrives is added to the rank's own array
  /// The step of the same rank that must be over (arrived, reduced, sent) with all before it before this one
  /// is posted; -1: posted at once. Always below the step's own index.
  int after = -1;
};

/// What a message costs between any two ranks, all equal: alpha + n * beta.
struct LinkCost {
  Seconds latency{0};        ///< alpha
  BytesPerSecond bandwidth;  ///< 1 / beta
};

/// A rank's steps are a function of their index, not a list: 1,024 ranks of a ring have two million of them.
/// Messages between a pair of ranks match in the order in which they are posted.
struct Algorithm {
  std::optional<CollectiveKind> kind;  ///< empty: a plain message, not a collective

  /// How many steps `rank` (an index in the group) takes part in.
  std::function<int(const CollectiveCall&, int rank)> steps;
  /// Step `index` of `rank`, 0 <= index < steps.
  std::function<Exchange(const CollectiveCall&, int rank, int index)> step;
  /// Time over equal links when endpoints are free and all ranks start together.
  std::function<Seconds(const CollectiveCall&, const LinkCost&)> time;
  /// Bytes that `rank` sends.
  std::function<Bytes(const CollectiveCall&, int rank)> sent;
  /// Bytes that `rank` copies from its input to its output besides; empty: none.
  std::function<Bytes(const CollectiveCall&, int rank)> copied;

  /// True for rings: every rank sends to its successor and receives from its predecessor in every step, and
  /// all ranks have the same number of steps. Only rings have so many messages that one flow per link is
  /// worth it.
  bool ring = false;
};

/// Keyed `<kind>/<name>`: `all_reduce/ring`, `all_reduce/gloo_ring`.
Registry<Algorithm>& algorithms();

/// The algorithm that `backend` uses for `kind`; "" is the ideal one, without a library's segments.
const Algorithm& algorithm_for(CollectiveKind kind, const std::string& backend);

}  // namespace stepcast
