#pragma once

#include <string>
#include <vector>

#include "calibration/collective_forecasts.hpp"

/// Measured collectives of NCCL, as other programs write them.
namespace stepcast {

/// A file of one of these kinds, which its content shows:
///
///     CSV                 columns device, op_name, nccl_dtype, num_gpus, bytes, latency_us; others are not read
///     text of nccl-tests  the tables of one or several tests; out of place where that was measured, else in place
///     JSON of nccl-tests  what `-J FILE` writes, versions 1 and 2
///     JSON of Inspector   objects with `header` and `coll_perf`, as many as there are; of a call the shortest time over its
///                         ranks, since others waited, and of equal calls the median
///
/// Rows of one GPU and of size 0 are left out. \param kind for text that does not name its test: `all_reduce`; "": it has to
/// \throws InputError that names file, line or key, and what was expected
std::vector<NcclSample> read_nccl_samples(const std::string& path, const std::string& kind = "");

}  // namespace stepcast
