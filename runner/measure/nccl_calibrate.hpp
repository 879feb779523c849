#pragma once

#include <functional>
#include <string>
#include <vector>

#include "calibration/nccl_calibration.hpp"
#include "runner/backend/session.hpp"
#include "runner/measure/bench_collectives.hpp"

/// A calibration of the GPUs of one host from collectives of NCCL in a job of this program.
namespace stepcast {

/// The collectives that NCCL's laws are fitted to.
const std::vector<std::string>& calibrated_collectives();

/// What was measured, and the calibration that it gives.
struct NcclMeasured {
  std::vector<NcclSample> samples;
  Calibration calibration;
};

/// Bench rows by the fit that `stepcast import` makes of nccl-tests' output (nccl_calibration()), the rows kept as samples. All
/// ranks call it with equal settings; complete at rank 0, without context. \pre settings.device is set \param device of
/// device_model(); "": as the driver calls the GPU \throws CapabilityError for ranks on several hosts, or with different GPUs,
/// which are named; RunError for wrong results; InputError for a GPU that no data sheet is of
NcclMeasured calibrate_nccl(RankSession& session, const BenchSettings& settings, const std::string& device,
                            const std::function<void(const std::string& now)>& on_sample);

}  // namespace stepcast
