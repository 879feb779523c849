#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "calibration/collective_forecasts.hpp"

/// Measured collectives of NCCL, as other programs write them.
namespace stepcast {

/// Names of the forecast collectives in nccl-tests' programs.
const std::vector<std::pair<std::string, CollectiveKind>>& nccl_kinds();
std::vector<std::string> nccl_kind_names();
/// Kind of `AllReduce`, `all_reduce` and `all_reduce_perf`; none for others.
std::optional<CollectiveKind> nccl_kind(const std::string& name);

/// Facts that a text may lack.
struct NcclHints {
  std::string kind{};  ///< for text that does not name its test: `all_reduce`
  int gpus = 0;        ///< for text that does not list its ranks
};

struct NcclMeasurements {
  std::vector<NcclSample> samples{};
  std::vector<std::string> assumed{}, ignored{};  ///< one sentence each, after `all_reduce.txt: `
};

/// Reads files of these kinds, recognised by their content:
///
///     CSV                 columns device, op_name, nccl_dtype, num_gpus, bytes, latency_us, others ignored
///     text of nccl-tests  tables of one or several tests; out of place if that was measured, else in place
///     JSON of nccl-tests  written by `-J FILE`, versions 1 and 2
///     JSON of Inspector   any number of objects with `header` and `coll_perf`; per call the shortest time
///                         over its ranks in all files, since others waited; per size the median over
///                         equal calls
///
/// Rows of one GPU and of size 0 are left out, of nccl-tests also rows with wrong elements, and cut rows. The
/// number of GPUs of a text is that of its highest rank, unless busbw / algbw contradicts it. \throws
/// InputError that names file, line or key, and what was expected
NcclMeasurements read_nccl_samples(const std::vector<std::string>& paths, const NcclHints& hints = {});

/// The same for the text of nccl-tests; notes have no path.
NcclMeasurements read_nccl_text(const std::string& path, const std::string& text, const NcclHints& hints);

}  // namespace stepcast
