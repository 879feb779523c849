#pragma once

#include <string>
#include <vector>

#include "calibration/nccl_calibration.hpp"
#include "runner/backend/session.hpp"
#include "runner/measure/bench_collectives.hpp"

/// A calibration of the GPUs of one host from collectives of NCCL in a job of this program.
namespace stepcast {

/// The collectives to which NCCL's parameters are fitted.
inline const std::vector<std::string> kCalibratedCollectives{"all_reduce", "all_gather", "reduce_scatter",
                                                             "all_to_all"};

/// Measured samples, and the calibration fitted to them.
struct NcclMeasured {
  std::vector<NcclSample> samples;
  Calibration calibration;
};

/// Fits bench rows as `stepcast import` fits nccl-tests' output (nccl_calibration()), and keeps the rows as
/// samples. All ranks call it with equal settings; complete at rank 0, without context. \pre settings.device
/// is set \param device name for device_model(); "": the driver's name of the GPU \throws CapabilityError for
/// ranks on several hosts or with different GPUs; RunError for wrong results; InputError for a GPU without
/// data sheet
NcclMeasured calibrate_nccl(RankSession& session, const BenchSettings& settings, const std::string& device,
                            const OnSample& on_sample);

}  // namespace stepcast
