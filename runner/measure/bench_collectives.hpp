#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "runner/backend/session.hpp"
#include "sim/records/bench.hpp"

/// Times of single collectives as nccl-tests measures them.
namespace stepcast {

struct BenchSettings {
  std::vector<std::string> collectives;  ///< names of sim/records/bench.hpp; empty: all
  std::vector<std::size_t> sizes;        ///< message bytes: the total array, never the shard
  int iterations = 0;                    ///< back-to-back calls per sample; 0: more for small messages
  int rounds = 9;                        ///< samples per collective and size, interleaved over all of them
};

/// Sizes smallest, smallest * factor, ... up to largest. \throws UsageError when there are none
std::vector<std::size_t> bench_sizes(double smallest, double largest, double factor);

/// \throws UsageError for a name that is not one of `bench_names`
void check_collectives(const std::vector<std::string>& names);

/// Measures; all ranks call it with equal settings and receive equal rows. In each round and for each size a
/// collective is called once on data whose result is known, every element of which is checked, and then
/// `iterations` times back to back, each waited for. A sample is the time per call on the slowest rank;
/// `cpu_s` is processor time per call and rank, all threads together. A size that cannot be cut into equal
/// parts of whole floats is rounded up; the row tells the size used. \throws UsageError for an unknown
/// collective, or for fewer than two ranks
std::vector<BenchRow> bench_collectives(RankSession& session, const BenchSettings& settings,
                                        const std::function<void(const std::string& now)>& on_sample);

}  // namespace stepcast
