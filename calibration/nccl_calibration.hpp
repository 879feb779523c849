#pragma once

#include <string>
#include <vector>

#include "calibration/collective_forecasts.hpp"
#include "records/calibration.hpp"

/// Parameters of NCCL's kernels from measured collectives.
namespace stepcast {

/// The most probable parameters. The prior is topologies/devices/nccl.yaml, each number with a standard
/// deviation of a factor e^0.2; a sample's residual has 10 %, with a soft L1 loss for outliers. A parameter
/// counts as determined if its standard deviation falls to 0.9 of the prior or less; others stay near the
/// default: reset to it, they would miss the samples by more.
/// \param device of device_model(); samples are of one host \throws InputError as CollectiveForecasts, and
/// for no samples
NcclCosts fit_nccl(const std::string& device, const std::vector<NcclSample>& samples);

/// Calibration of NCCL alone, without context, from the files of `import` or the samples of `calibrate`.
/// \throws as fit_nccl()
Calibration nccl_calibration(const std::string& device, const std::vector<NcclSample>& samples);

/// Error of parameters: the geometric mean of max(f/m, m/f) - 1. \pre samples not empty
double nccl_error(const NcclCosts& costs, const std::vector<NcclSample>& samples);

/// Table of parameters, default and fitted, and their errors. \pre samples not empty
std::string fit_text(const NcclCosts& costs, const std::vector<NcclSample>& samples);

}  // namespace stepcast
