#pragma once

#include <functional>
#include <map>
#include <string>

#include "models/model.hpp"
#include "sim/core/registry.hpp"
#include "sim/core/schedule.hpp"

/// A strategy turns a model and a training configuration into a Schedule. One file each; a new file is at
/// once predictable, runnable, listed by `help` and held to the laws in tests/strategies.
namespace stepcast {

struct TrainingConfig {
  int world_size = 1;
  int batch = 1;                 ///< per rank
  Bytes bucket_cap{25 * kMebi};  ///< DDP: a bucket closes when it has reached this size
  /// DDP: the same for the first bucket, so that communication starts early.
  Bytes first_bucket_cap{1 * kMebi};
  bool broadcast_buffers = true;  ///< DDP: rank 0's buffers before each forward
};

struct Strategy {
  /// \pre config.world_size >= 1, config.batch >= 1
  std::function<Schedule(const Model&, const TrainingConfig&)> build;
};

Registry<Strategy>& strategies();

/// Builds by name and validates. \throws UsageError for an unknown name or a world size or batch below 1.
Schedule build_schedule(const std::string& strategy, const Model& model, const TrainingConfig& config);

}  // namespace stepcast
