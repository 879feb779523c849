#pragma once

#include <functional>
#include <string>
#include <vector>

#include "models/model.hpp"
#include "sim/core/registry.hpp"
#include "sim/core/result.hpp"
#include "sim/core/schedule.hpp"

/// A strategy turns a model and a training configuration into a Schedule. One file each; a new file is at
/// once predictable, runnable, listed by `help` and held to the laws in tests/strategies.
namespace stepcast {

// NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding): grouped by strategy, one per program
struct TrainingConfig {
  int world_size = 1;
  int batch = 1;          ///< samples per rank; of a pipeline: per pipeline
  int micro_batches = 1;  ///< equal parts of the batch, whose gradients are accumulated

  /// ddp, and data parallelism beside a pipeline: a bucket closes when it has reached this size
  Bytes bucket_cap{25 * kMebi};
  Bytes first_bucket_cap{1 * kMebi};  ///< the same for the first bucket, so that communication starts early
  bool broadcast_buffers = true;      ///< ddp: rank 0's buffers before each forward
  std::string compress = "none";      ///< ddp: `none`, or `fp16`: buckets travel as half precision

  // pipeline
  std::string split = "even";        ///< `3-3-3-3`, `even`, `ratio:2-2-2-2`, `balanced`
  std::string schedule = "1f1b";     ///< `gpipe`, `1f1b`, `interleaved`
  int virtual_stages = 1;            ///< chunks of the model per rank; interleaved only
  std::string checkpoint = "never";  ///< `never`, `except_last`, `always`: which micro-batches are recomputed
  bool forward_only = false;
  std::string mesh;  ///< `pipeline=2,data=2`; "": all ranks are stages
  /// Measured forward plus backward time of every segment, for the split `balanced`.
  std::vector<double> segment_times;

  // fsdp
  std::string sharding = "full_shard";  ///< `full_shard`, `shard_grad_op`, `no_shard`
  std::string wrap = "block";     ///< a unit is a `block`, a `layer` (segment), or the `root` (whole model)
  bool forward_prefetch = false;  ///< all-gather the next unit before this one computes
  std::string backward_prefetch = "pre";  ///< `pre`, `post`, `none`
  int limit_all_gathers = 2;              ///< units gathered and not yet freed; 0: no limit

  // broadcast
  std::string method = "sequential";  ///< `sequential`, `relay`, `chunked`
  Bytes buffer{1e9};                  ///< from the host to every device
  Bytes chunk{64 * kMebi};            ///< chunked: what is passed on at once
  bool pinned = false;                ///< whether the host's memory is
};

struct Strategy {
  /// \pre config.world_size >= 1, config.batch >= 1, micro_batches divides batch
  std::function<Schedule(const Model&, const TrainingConfig&)> build;
  /// Options of the command line that it heeds, without dashes; `world-size`, `batch` and `micro-batches` are
  /// everybody's.
  std::vector<std::string> options{};
  /// False where it only moves data: it looks at no model, which is empty then, and at no batch.
  bool trains = true;
};

Registry<Strategy>& strategies();

/// Builds by name and validates. \throws UsageError for an unknown name, a world size or batch below 1, or
/// micro-batches that do not divide the batch.
Schedule build_schedule(const std::string& strategy, const Model& model, const TrainingConfig& config);

/// What a Result says of the run: model, strategy, sizes and the options that the strategy heeds. The caller
/// adds threads, backend, cluster and steps.
Configuration configuration_of(const Schedule& schedule, const Model& model, const TrainingConfig& config);

/// \throws UsageError with the nearest name when `value` is not one of `known`
void require_one_of(const std::string& option, const std::string& value,
                    const std::vector<std::string>& known);

}  // namespace stepcast
