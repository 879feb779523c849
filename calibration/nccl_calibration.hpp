#pragma once

#include <string>
#include <vector>

#include "calibration/collective_forecasts.hpp"
#include "records/calibration.hpp"

/// Laws of NCCL's kernels from measured collectives.
namespace stepcast {

/// The most probable laws: topologies/devices/nccl.yaml is the prior, of which each number is known to a factor of e^0.2 (one
/// standard deviation), and a sample is missed by 10 %, by much more now and then (soft L1). What samples do not tell keeps
/// its default and is not listed as determined, which is what is left with at most 0.9 of its standard deviation.
/// \param device of device_model(); samples are of one host \throws InputError as CollectiveForecasts, and for no samples
NcclCosts fit_nccl(const std::string& device, const std::vector<NcclSample>& samples);

/// A calibration of nothing but NCCL, without context: what `import` makes of files and `calibrate` of its own samples.
/// \throws as fit_nccl()
Calibration nccl_calibration(const std::string& device, const std::vector<NcclSample>& samples);

/// By how much laws miss samples: the geometric mean of max(f/m, m/f) - 1. \pre samples not empty
double nccl_error(const NcclCosts& costs, const std::vector<NcclSample>& samples);

/// A table of the laws, default and fitted, and by how much they miss the samples. \pre samples not empty
std::string fit_text(const NcclCosts& costs, const std::vector<NcclSample>& samples);

}  // namespace stepcast
