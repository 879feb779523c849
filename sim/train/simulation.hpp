#pragma once

#include <cstdint>
#include <vector>

#include "sim/train/timeline.hpp"

namespace stepcast {

/// One simulated training.
struct TrainingRun {
  double wall_s = 0.0;
  TrainingParts parts{};  ///< sum to wall_s
  double failures = 0.0, planned = 0.0;
};

/// Simulates trainings from event to event: interruptions as one Poisson process (the superposition of all
/// components), slow episodes, returns of hosts and replicas. Between events CheckpointCycle gives the
/// progress, so that a training costs what its events cost, whatever its number of steps and devices.
///
/// A failure during a recovery begins it again. Nothing fails while the job waits for a repair. Slow episodes
/// begin at any time. With two levels, interruptions that lose the hosts' memory go back to the storage's
/// checkpoint, others to the memory's. kShrink: replicas whose hosts are in repair are left out; when they
/// return, the training saves and restarts. kContinue: a failure costs the others its detection and half a
/// step on average; its replica is absent until its recovery,
/// or the repair that it waits for, ends.
/// \throws InputError if a training takes over 1,000 times its useful time
std::vector<TrainingRun> simulate_trainings(const TrainingCase& training, std::size_t count,
                                            std::uint64_t seed);

}  // namespace stepcast
