#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "records/calibration.hpp"
#include "runner/backend/ping_pong.hpp"
#include "runner/backend/session.hpp"

/// The measurements to which a Calibration is fitted. Only point-to-point messages are used, never a
/// collective.
namespace stepcast {

/// Two ranks whose messages represent a path class.
struct ProbedPair {
  std::string path_class;
  RankPair ranks;
};

struct ProbeSettings {
  std::vector<std::size_t> message_sizes;
  std::vector<std::size_t> array_sizes;  ///< of reductions and copies
  int rounds = 9;                        ///< samples per probe, interleaved
  double budget_s = 120.0;               ///< for all of them, including warm-up and repeated ones
  bool repeats = true;                   ///< probes with interference, until the budget ends
  bool shaped_links = false;             ///< timers of this machine shape the links
  std::vector<ProbedPair> pairs;         ///< one per path class; empty: no messages
  /// Ranks that share rank 0's cores and memory, including rank 0. \pre not empty
  std::vector<int> sharing_ranks{0};
  /// One rank per host, in the order in which they pass messages on; fewer than 3: not measured.
  std::vector<int> ring;
  /// Prepares to[i] = scale * from[i] by the code that copies gradients in training; the result runs it.
  std::function<std::function<void()>(float* to, float* from, float scale, std::size_t count)> prepare_copy;
};

/// All samples, including those with interference, and how they were taken.
struct ProbedSamples {
  std::vector<SampleSet> sets;
  Sampling sampling;
};

/// Runs all probes, in rounds; every rank calls it and receives all sample sets. Times are those of the
/// slowest rank that takes part, CPU times the mean over those ranks. A warm-up round measures the cost of
/// each probe. Sizes of messages and arrays above 64 KiB for which the budget does not allow 3 rounds are
/// given up, then the longest probes lose rounds. Probes with interference in more than a third of their
/// samples are repeated until the budget ends. For every pair:
///
///     ping_pong    n bytes: half a round trip, receives posted beforehand
///     rendezvous   n bytes: one way, each receive posted after the previous message has arrived
///     handed_over  n bytes: the same through the communication thread, each call waited for
///     exchange     n bytes: both send without a pause, two messages in flight each way; per message each way
///     ring_pair    1 MiB: both pass messages on, one at a time each way; between hosts, if there is a ring
///
/// for the ring:
///
///     ring_all     1 MiB: the same by all its ranks at once, each to the next; time per message
///
/// for rank 0 and the ranks on its machine:
///
///     reduce           n bytes: into += from by the backend's code, with `from` in the cache; rank 0
///     copy             n bytes: to = scale * from; rank 0
///     memory_one/all   bytes of one unit: streaming by rank 0 alone, by all those ranks; mean rank
///     compute_one/all  one matrix multiplication by rank 0 alone, by all those ranks at once; mean rank
///     compute_beside_communication  the same while these ranks (all, if rank 0 is alone on its machine)
///                      exchange 1 MiB messages in a ring without a pause
///
/// One rank measures only probes without a peer. \throws RunError if the budget is spent before 64 KiB
ProbedSamples run_probes(RankSession& session, const BackendFactory& factory, const ProbeSettings& settings,
                         const std::function<void(const std::string& now)>& on_round);

}  // namespace stepcast
