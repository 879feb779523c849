#pragma once

#include <string>
#include <vector>

#include "core/units.hpp"
#include "sim/schedule/schedule.hpp"

/// Measured collectives of NCCL, as other programs write them.
namespace stepcast {

/// One size: what a call took.
struct NcclSample {
  std::string device;  ///< as the driver calls it: `NVIDIA H100 80GB HBM3`; "" where the file does not say
  CollectiveKind kind = CollectiveKind::kAllReduce;
  int gpus = 2;
  int hosts = 1;
  std::string dtype;  ///< `half`; "" where the file does not say
  Bytes message;      ///< the total array, as nccl-tests' column `size` has it
  Seconds time;
  std::string where;  ///< `all_reduce.txt:31`, for errors
};

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
