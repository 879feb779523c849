#pragma once

#include <string>
#include <vector>

#include "sim/records/calibration.hpp"
#include "sim/validation/nccl_samples.hpp"

/// Laws of NCCL's kernels from measured collectives.
namespace stepcast {

/// The most probable laws: topologies/devices/nccl.yaml is the prior, of which each number is known to a factor of e^0.2 (one
/// standard deviation), and a sample is missed by 10 %, by much more now and then (soft L1). What samples do not tell keeps
/// its default and is not listed as determined, which is what is left with at most 0.9 of its standard deviation.
/// \param device of device_model(); samples are of one host \throws InputError as CollectiveForecasts, and for no samples
NcclCosts fit_nccl(const std::string& device, const std::vector<NcclSample>& samples);

/// By how much laws miss samples: the geometric mean of max(f/m, m/f) - 1. \pre samples not empty
double nccl_error(const NcclCosts& costs, const std::vector<NcclSample>& samples);

}  // namespace stepcast
