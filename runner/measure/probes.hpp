#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "records/calibration.hpp"
#include "runner/backend/ping_pong.hpp"
#include "runner/backend/session.hpp"

/// The measurements that a Calibration is fitted from. Only point-to-point messages are used, never a
/// collective.
namespace stepcast {

/// Two ranks whose messages are those of a path class.
struct ProbedPair {
  std::string path_class;
  RankPair ranks;
};

struct ProbeSettings {
  std::vector<std::size_t> message_sizes;
  std::vector<std::size_t> array_sizes;  ///< of reductions and copies
  int rounds = 9;                        ///< samples per probe, interleaved
  double budget_s = 120.0;               ///< for all of them, warm-up and repeated ones included
  bool shaped_links = false;             ///< timers of this machine hold links to their rates
  std::vector<ProbedPair> pairs;         ///< one per path class; none: no messages
  /// Ranks that share rank 0's cores and memory, rank 0 among them. \pre not empty
  std::vector<int> sharing_ranks{0};
  /// One rank per host, in the order in which they pass messages on; fewer than 3: not measured.
  std::vector<int> ring;
  /// to[i] = scale * from[i], by the code that copies gradients in training; resolved now, done when called.
  std::function<std::function<void()>(float* to, float* from, float scale, std::size_t count)> prepare_copy;
};

/// All samples, disturbed ones among them, and how they came together.
struct ProbedSamples {
  std::vector<SampleSet> sets;
  Sampling sampling;
};

/// All probes, in rounds; every rank calls it and receives all sample sets. Times are those of the slowest
/// rank that takes part, processor times the mean over those ranks; the machine beside a sample is that of the
/// rank that was given least. A warm-up round finds what each sample costs. Message sizes of which the budget does
/// not allow 3 rounds are given up from the largest down, then the longest samples lose rounds; where two thirds
/// of a probe's samples are not undisturbed, it is repeated until they are or the budget ends. Of every pair:
///
///     ping_pong        n bytes: half of a round trip, receives posted beforehand
///     rendezvous       n bytes: the first sends to the second, each receive posted when the message before is
///     there
///     handed_over      n bytes: the same through the communication thread, each call waited for
///     exchange         n bytes: both send to each other without a pause, two messages in flight each way; time
///     and processor time per message of one way
///     ring_pair        1 MiB: both pass messages to each other, one at a time each way; where there is a ring,
///     and between hosts
///
/// of the ring:
///
///     ring_all         1 MiB: the same by all its ranks at once, each to the next: time per message
///
/// of rank 0 and of the ranks beside it on its machine:
///
///     reduce           n bytes: into += from by the backend's own code, where `from` has just come in and
///     `into` lies anywhere; rank 0 alone
///     copy             n bytes: to = scale * from, both anywhere; rank 0 alone
///     memory_one/all   bytes of one unit: streaming by rank 0 alone, by all those ranks at once; mean rank
///     compute_one/all  one matrix product by rank 0 alone, by all those ranks at once; mean rank
///     compute_beside_communication  the same while these ranks (of a rank that is alone there: all ranks)
///     exchange 1 MiB messages in a ring without a pause
///
/// One rank measures only what needs no peer.
ProbedSamples run_probes(RankSession& session, const BackendFactory& factory, const ProbeSettings& settings,
                         const std::function<void(const std::string& now)>& on_round);

}  // namespace stepcast
