#pragma once

#include <string>
#include <vector>

#include "records/bench.hpp"
#include "sim/replay/environment.hpp"

/// Times of single collectives from endpoint costs alone, to be held against a measured bench file.
namespace stepcast {

struct CollectiveRequest : EnvironmentRequest {
  ResourceScales scales{};
  std::vector<std::string> collectives{};  ///< empty: all of them
  int world_size = 2;
  std::vector<std::size_t> sizes = bench_sizes(4.0, 64.0 * kMebi, 4.0);  ///< bytes of messages
};

/// Replays each collective back to back, waited for every time as `stepcast bench` does. With a calibration,
/// skew between ranks that share cores goes on from call to call: a row has the ten samples of the later
/// calls. Without one, every call takes as long as the one before: a row has one sample. `send_recv` is half
/// the round trip of a ping-pong. \throws UsageError for an unknown collective, a world size below 2, a
/// range that is empty, or a scale of what collectives do not use.
Bench predict_collectives(const CollectiveRequest& request);

}  // namespace stepcast
