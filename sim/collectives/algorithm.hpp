#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/registry.hpp"
#include "schedule/schedule.hpp"

/// Collective algorithms: which point-to-point messages a collective is made of, in which order, and what
/// they cost in closed form. One file per family; the laws in tests/collectives hold every entry.
/// `sim/replay` moves the messages in simulated time, `runner` moves them over a real library.
namespace stepcast {

/// NCCL's own name for an algorithm: sim/collectives/nccl_tuning.hpp.
enum class NcclAlgorithm : std::uint8_t;

/// One collective over `ranks` ranks. `message` is the total array, never the shard.
///
/// Every rank holds one array of `message` bytes in n equal blocks. What it holds before and after:
///
///     all_reduce       its own array                       the sum of all
///     reduce_scatter   its own array                       in block r the sum of all blocks r
///     all_gather       in block r its own part             everybody's parts
///     broadcast        root: the array                     the array
///     gather           in block r its own part             root: everybody's parts
///     scatter          root: the array                     in block r root's block r
///     all_to_all       in block j what is for rank r + j   in block j what rank r - j had for r
///     shift            its own array                       that of rank r - 1
struct CollectiveCall {
  Bytes message;
  int ranks = 1;
  int root = 0;              ///< ignored by kinds without a root
  double element_bytes = 4;  ///< arrays are only cut between elements
};

/// One step of one rank: at most one message sent and one received, posted together. Positions are counted
/// from the beginning of the rank's array.
struct Exchange {
  int to = -1;  ///< -1: sends nothing
  Bytes sent{};
  Bytes sent_at{};
  int from = -1;  ///< -1: receives nothing
  Bytes received{};
  Bytes received_at{};
  bool reduce = false;  ///< what arrives is added to the rank's own array; else it replaces what is there
  /// The step of the same rank that must be over (arrived, reduced, sent) with all before it before this one
  /// is posted; -1: posted at once. Always below the step's own index.
  int after = -1;
};

/// The first whole element at or behind a position. A cut between equal parts is a whole element up to
/// rounding, or at least one part in a thousand away from one, so that both ends of a message agree.
std::size_t element_at(Bytes position, double element_bytes);

/// Cost of a message between any two ranks, equal for all: alpha + n * beta.
struct LinkCost {
  Seconds latency{0};        ///< alpha
  BytesPerSecond bandwidth;  ///< 1 / beta
};

/// A rank's steps are a function of their index, not a list: 1,024 ranks of a ring have two million of them.
/// Messages between a pair of ranks match in the order in which they are posted.
struct Algorithm {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  /// Libraries over which it can be chosen: `gloo`, `nccl`, "" (ideal: messages without a library's cost).
  std::vector<std::string> backends{};
  /// Libraries that run it by default. NCCL chooses by size if it has several.
  std::vector<std::string> default_of{};

  /// Number of steps of `rank`, an index in the group.
  std::function<int(const CollectiveCall&, int rank)> steps;
  /// Step `index` of `rank`, 0 <= index < steps.
  std::function<Exchange(const CollectiveCall&, int rank, int index)> step;
  /// Time over equal links when endpoints are free and all ranks start together.
  std::function<Seconds(const CollectiveCall&, const LinkCost&)> time;
  /// Bytes that `rank` sends.
  std::function<Bytes(const CollectiveCall&, int rank)> sent;
  /// Bytes that `rank` copies from its input to its output besides; empty: none.
  std::function<Bytes(const CollectiveCall&, int rank)> copied{};

  std::optional<NcclAlgorithm> nccl{};  ///< the same in NCCL's formulas; empty: NCCL lacks it
  /// True for rings: every rank sends to its successor and receives from its predecessor in every step, and
  /// all ranks have the same number of steps. Only rings have so many messages that one flow per link is
  /// worth it.
  bool ring = false;
};

/// Calls `visit(from, to, bytes)` for every message, between indices in the group.
void for_each_message(const Algorithm& algorithm, const CollectiveCall& call, const auto& visit) {
  for (int index = 0; index < call.ranks; ++index)
    for (int k = 0; k < algorithm.steps(call, index); ++k)
      if (const Exchange step = algorithm.step(call, index, k); step.to >= 0 && step.sent > Bytes(0))
        visit(index, step.to, step.sent);
}

/// Keyed `<kind>/<name>`: `all_reduce/ring`, `all_reduce/gloo_ring`.
Registry<Algorithm>& algorithms();
/// An entry of the table: `const AlgorithmEntry kRing("all_reduce/ring", "...", {...});`
struct AlgorithmEntry : Registration<Algorithm> {
  AlgorithmEntry(const char* name, const char* description, Algorithm algorithm)
      : Registration(algorithms(), {name, description, std::move(algorithm)}) {}
};

/// Algorithms in place of the backend's own: names by kind. Ordered, for texts.
using AlgorithmChoice = std::map<CollectiveKind, std::string>;

/// Parses `all_reduce=ring,all_to_all=pairwise` and drops the backend's own algorithms. \throws UsageError
/// that lists the algorithms of this backend
AlgorithmChoice parse_algorithms(const std::string& text, const std::string& backend);
/// Text that `parse_algorithms` reads.
std::string to_text(const AlgorithmChoice& choice);

/// The algorithm that runs a collective of `kind` over `backend`: the one chosen, else the backend's own,
/// else the ideal one (of NCCL, which chooses by its formulas).
const Algorithm& algorithm_for(CollectiveKind kind, const std::string& backend,
                               const AlgorithmChoice& choice = {});
/// Its name without the kind: `gloo_ring`.
std::string algorithm_name(const Algorithm& algorithm);

/// For --help: every choice with its description and where it is to be had.
std::string describe_algorithms();

}  // namespace stepcast
