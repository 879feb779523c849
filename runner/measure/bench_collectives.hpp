#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "records/bench.hpp"
#include "runner/backend/session.hpp"
#include "runner/execute/device_stream.hpp"
#include "runner/measure/sampler.hpp"

/// Times of single collectives as nccl-tests measures them.
namespace stepcast {

struct BenchSettings {
  std::vector<std::string> collectives;  ///< names of records/bench.hpp
  std::vector<std::size_t> sizes;        ///< message bytes: the total array, never the shard
  int iterations = 0;                    ///< back-to-back calls per sample; 0: more for small messages
  int rounds = 9;                        ///< samples per collective and size, interleaved over all of them
  /// Device whose queue the backend's calls follow; null: arrays are in this host's memory.
  DeviceStream* device = nullptr;
};

/// \throws UsageError for a name that is not one of `known`
void check_names(const std::string& kind, const std::vector<std::string>& names,
                 const std::vector<std::string>& known);

/// Samples that a bench of these settings takes.
int bench_samples(const BenchSettings& settings, int ranks);

/// Measures; all ranks call it with equal settings and receive equal rows. In each round and for each size a
/// collective is called once on known data, every element of whose result is checked, and then `iterations`
/// times back to back. A sample is the time per call on the slowest rank; `cpu_s` is CPU time per call and
/// rank, of all threads. On the host each call is waited for. On a device all calls are issued while it is
/// blocked, one more than are counted, and a sample reaches from the end of the first, at which all ranks
/// have met, to the end of the last by the device's clock, as in nccl-tests. A ping-pong is timed on the
/// host. Sizes are rounded (message_sizes). \pre known
/// collectives, at least 2 ranks
std::vector<BenchRow> bench_collectives(RankSession& session, const BenchSettings& settings,
                                        const OnSample& on_sample);

/// Samples one case per row and adds the samples to the rows; values are numbers of wrong elements.
void sample_rows(RankSession& session, std::vector<SampledCase> cases, int rounds, const OnSample& on_sample,
                 std::vector<BenchRow>& rows);
/// \throws RunError that names the first row with wrong elements
void require_right(const std::vector<BenchRow>& rows);

}  // namespace stepcast
