#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "records/trace.hpp"
#include "sim/kineto/rank_profile.hpp"
#include "sim/kineto/traced_model.hpp"

namespace stepcast {

/// Ranks of one run, and what their profiles have in common.
struct ProfiledRun {
  std::vector<RankProfile> ranks{};         ///< sorted by rank
  std::vector<ProfiledSegment> segments{};  ///< the same on all ranks; of the first step's operations
  std::optional<Model> model{};             ///< whose segments they are; unset: the profile's own
  int micro_batches = 1;
  int shards = 1;               ///< ranks that share the optimizer
  double parameters = 0.0;      ///< elements; 0: unknown
  std::size_t gradients = 0;    ///< tensors
  bool shared_buckets = false;  ///< gradients share the elements of DDP's buckets or FSDP's reductions evenly
  std::string precision{};      ///< see models/precision.hpp
  std::string compute_dtype{};  ///< `bf16`
  std::vector<TracedCollective> collectives{};
};

/// Reads the profiles of all given ranks. Collectives that several ranks called together take from the latest
/// start to the end. \param model specification; "": unknown \throws InputError for ranks of different runs,
/// stages of a pipeline, or one rank twice
ProfiledRun read_profiled_run(const std::vector<std::string>& paths, const std::string& model = "");

/// By segment of the run, the times of its operations in one step as one: sums over all micro-batches,
/// without the loss.
std::vector<ProfiledOperation> segment_sums(const ProfiledRun& run, const RankProfile& rank,
                                            const ProfiledStep& step);

/// One entry, whose steps are those of all ranks. \param batch samples of a micro-batch
TraceEntry traced_entry(const ProfiledRun& run, int batch);

/// Time of a step, of the parts and of the device as `import` prints them, in seconds: `step`, `exposed`.
std::map<std::string, double> step_summary(const ProfiledRun& run);

}  // namespace stepcast
