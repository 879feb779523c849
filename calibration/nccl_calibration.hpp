#pragma once

#include <string>
#include <vector>

#include "calibration/collective_forecasts.hpp"
#include "records/calibration.hpp"

/// Laws of NCCL's kernels from measured collectives.
namespace stepcast {

/// The most probable parameters. The prior is topologies/devices/nccl.yaml, each number with a standard
/// deviation of a factor e^0.2; a sample's residual has 10 %, with a soft L1 loss for outliers. A parameter
/// counts as determined if its standard deviation falls to 0.9 of the prior or less; others keep the default.
/// \param device of device_model(); samples are of one host \throws InputError as CollectiveForecasts, and
/// for no samples
NcclCosts fit_nccl(const std::string& device, const std::vector<NcclSample>& samples);

/// A calibration of nothing but NCCL, without context: what `import` makes of files and `calibrate` of its
/// own samples.
/// \throws as fit_nccl()
Calibration nccl_calibration(const std::string& device, const std::vector<NcclSample>& samples);

/// By how much laws miss samples: the geometric mean of max(f/m, m/f) - 1. \pre samples not empty
double nccl_error(const NcclCosts& costs, const std::vector<NcclSample>& samples);

/// A table of the laws, default and fitted, and by how much they miss the samples. \pre samples not empty
std::string fit_text(const NcclCosts& costs, const std::vector<NcclSample>& samples);

}  // namespace stepcast
