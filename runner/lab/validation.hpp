#pragma once

#include <functional>
#include <string>

#include "runner/lab/matrix.hpp"
#include "sim/evidence/lab_report.hpp"

/// Proves predictions in virtual clusters: measures traces and point-to-point calls, predicts every case, and
/// only then runs it.
namespace stepcast {

/// The cluster whose point-to-point calls are all that is measured of communication.
inline constexpr const char* kLabCalibrationCluster = "lab-star:hosts=2,rate=1Gb/s";
inline constexpr double kLabCalibrationRate = 125e6;  ///< bytes per second, as sold

/// How far a point of studies/lab/lab.yaml lies from the calibration.
std::string distance_of(const LabPoint& point);

struct LabValidation {
  std::string folder = "out/lab";
  std::string lab = "validate";  ///< name of the labs, one after the other
  bool quick = false;
  std::string only;  ///< cases whose name has this in it
  int launches = 3;  ///< of every case, interleaved over all cases
  /// What is done now, after each of `total` parts.
  std::function<void(int done, int total, const std::string& now)> on_progress = [](int, int,
                                                                                    const std::string&) {};
};

/// Writes into the folder: traces/, calibration.json, predicted/, runs/ and compare.json (schema
/// stepcast.lab/1). Cases whose predicted step is longer than 1 s are left out. Files that are there are
/// overwritten.
/// \throws RunError with the words of the program that failed; the lab is removed then
LabReport validate_lab(const LabValidation& validation);

}  // namespace stepcast
