#pragma once

#include <string>
#include <vector>

#include "calibration/collective_forecasts.hpp"

/// Measured collectives of NCCL, as other programs write them.
namespace stepcast {

/// Reads a file of one of these kinds, recognised by its content:
///
///     CSV                 columns device, op_name, nccl_dtype, num_gpus, bytes, latency_us, others ignored
///     text of nccl-tests  tables of one or several tests; out of place if that was measured, else in place
///     JSON of nccl-tests  written by `-J FILE`, versions 1 and 2
///     JSON of Inspector   any number of objects with `header` and `coll_perf`; per call the shortest time
///                         over its ranks, since others waited; per size the median over equal calls
///
/// Rows of one GPU and of size 0 are left out. \param kind for text that does not name its test:
/// `all_reduce`; may be empty otherwise. \throws InputError that names file, line or key, and what was
/// expected
std::vector<NcclSample> read_nccl_samples(const std::string& path, const std::string& kind = "");

}  // namespace stepcast
