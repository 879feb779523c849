#pragma once

#include <string>
#include <vector>

#include "models/model.hpp"
#include "records/result.hpp"
#include "topologies/devices.hpp"

/// Notes of a forecast about its device: how the estimate was made, known errors, and memory.
namespace stepcast {

/// Describes how the estimate was made.
std::string estimate_note(const Precision& precision, const DeviceModel& device);

/// What the estimate assumes where neither the request nor a measurement decided it, joined by semicolons:
/// kinds of kernels, and rates that were measured on another device.
std::string assumed_note(const Model& model, const DeviceModel& device);

/// A measured step next to its estimate, to which nothing was fitted: a row of
/// calibration/data/device-errors.json.
struct DeviceError {
  std::string device;  ///< `h100-sxm`
  std::string model, strategy, cluster;
  int world_size = 1;
  int batch = 1;
  double predicted_s = 0.0;
  double measured_s = 0.0;
  std::string source;
  std::string remark;  ///< what the source leaves open, or why the estimate is off
};

/// \throws InputError that names the file and what is wrong in it
std::vector<DeviceError> device_errors();

/// Errors of estimates for a device, row by row with the source, or that none is known.
std::string known_errors_note(const DeviceModel& device);

/// Describes the steps that the device's parameters were fitted to, and marks an extrapolation in ranks.
std::string fitted_note(const FittedTo& fitted, int ranks);

/// `rank 0 needs 91.2 GiB, h100-sxm holds 79.6 GiB: the step does not fit`, or "" if it fits. Without the
/// memory of the framework and its libraries (some 500 MB).
std::string memory_warning(const Result& result, const DeviceModel& device);

}  // namespace stepcast
