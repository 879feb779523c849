#pragma once

#include <string>
#include <vector>

#include "records/bench.hpp"
#include "sim/replay/environment.hpp"

/// Times of single collectives from endpoint costs alone, to be held against a measured bench file.
namespace stepcast {

struct MessageRange {
  Bytes smallest{4.0}, largest{64.0 * kMebi};
  double factor = 4.0;  ///< from one size to the next
};

struct CollectiveRequest : EnvironmentRequest {
  ResourceScales scales{};
  std::vector<std::string> collectives{};  ///< empty: all of them
  int world_size = 2;
  MessageRange sizes{};
};

/// Message sizes smallest, smallest * factor, ... up to largest, in whole float32 elements, and for
/// collectives that move parts (gather, scatter, all_gather, reduce_scatter) in whole elements per rank,
/// rounded up as `stepcast bench` does. \pre factor > 1
std::vector<Bytes> message_sizes(const CollectiveRequest& request, const std::string& collective);

/// Replays each collective back to back, waited for every time as `stepcast bench` does. With a calibration,
/// skew between ranks that share cores goes on from call to call: a row has the ten samples of the later
/// calls. Without one, every call takes as long as the one before: a row has one sample. `send_recv` is half
/// the round trip of a ping-pong. \throws UsageError for an unknown collective, a world size below 2, a
/// range that is empty, or a scale of what collectives do not use.
Bench predict_collectives(const CollectiveRequest& request);

}  // namespace stepcast
