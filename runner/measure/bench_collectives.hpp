#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "records/bench.hpp"
#include "runner/backend/session.hpp"
#include "runner/execute/device_queue.hpp"

/// Times of single collectives as nccl-tests measures them.
namespace stepcast {

struct BenchSettings {
  std::vector<std::string> collectives;  ///< names of records/bench.hpp; empty: all
  std::vector<std::size_t> sizes;        ///< message bytes: the total array, never the shard
  int iterations = 0;                    ///< back-to-back calls per sample; 0: more for small messages
  int rounds = 9;                        ///< samples per collective and size, interleaved over all of them
  /// Whose queue calls of the backend follow, as it was made; null: arrays are this host's memory
  DeviceQueue* device = nullptr;
};

/// Sizes smallest, smallest * factor, ... up to largest. \throws UsageError when there are none
std::vector<std::size_t> bench_sizes(double smallest, double largest, double factor);

/// \throws UsageError for a name that is not one of `bench_names`
void check_collectives(const std::vector<std::string>& names);

/// Measures; all ranks call it with equal settings and receive equal rows. In each round and for each size a
/// collective is called once on data whose result is known, every element of which is checked, and then
/// `iterations` times back to back. A sample is the time per call on the slowest rank; `cpu_s` is processor time per call and
/// rank, all threads together. Without a device each call is waited for. On a device all are issued while it is held back, one
/// more than are counted, and a sample is from the end of the first, where all ranks have met, to that of the last, by the
/// device: what a call takes behind another one, as nccl-tests has it where its host keeps ahead. A ping-pong waits on its host. A size that cannot be cut into equal
/// parts of whole floats is rounded up; the row tells the size used. \throws UsageError for an unknown
/// collective, or for fewer than two ranks
std::vector<BenchRow> bench_collectives(RankSession& session, const BenchSettings& settings,
                                        const std::function<void(const std::string& now)>& on_sample);

/// \throws RunError that names the first row with wrong elements
void require_right(const std::vector<BenchRow>& rows);

}  // namespace stepcast
