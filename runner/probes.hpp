#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "runner/backend.hpp"
#include "sim/core/calibration.hpp"

/// The measurements that a Calibration is fitted from. Only point-to-point messages are used, never a
/// collective.
namespace stepcast {

struct ProbeSettings {
  std::vector<std::size_t> message_sizes;
  std::vector<std::size_t> array_sizes;  ///< of reductions and copies
  int rounds = 9;                        ///< samples per probe, interleaved
  /// to[i] = scale * from[i], by the code that copies gradients in training; resolved now, done when called.
  std::function<std::function<void()>(float* to, float* from, float scale, std::size_t count)> prepare_copy;
};

/// All probes, in rounds; every rank calls it and receives all sample sets. Times are those of the slowest
/// rank that takes part, processor times the mean over those ranks:
///
///     ping_pong        n bytes: half of a round trip between ranks 0 and 1, receives posted beforehand
///     rendezvous       n bytes: rank 0 sends to rank 1, each receive posted when the message before is there
///     handed_over      n bytes: the same through the communication thread, each call waited for
///     exchange         n bytes: ranks 0 and 1 send to each other without a pause, two messages in flight
///     each way; time and processor time per message of one way
///     reduce           n bytes: into += from by the backend's own code, where `from` has just come in and
///     `into` lies anywhere; rank 0 alone
///     copy             n bytes: to = scale * from, both anywhere; rank 0 alone
///     memory_one/all   bytes of one unit: streaming by rank 0 alone, by all ranks at once; mean rank
///     compute_one/all  one matrix product by rank 0 alone, by all ranks at once; mean rank
///     compute_beside_communication  the same by all ranks while ranks exchange 1 MiB messages without a
///     pause communication_beside_compute  those messages: n bytes; time and processor time per message and
///     end
///
/// One rank measures only what needs no peer.
std::vector<SampleSet> run_probes(Backend& backend, const BackendFactory& factory,
                                  const ProbeSettings& settings,
                                  const std::function<void(const std::string& now)>& on_round);

}  // namespace stepcast
