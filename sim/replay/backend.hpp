#pragma once

#include <string>

#include "sim/records/calibration.hpp"
#include "topologies/cluster.hpp"

namespace stepcast {

/// The communication library that a prediction is for: the one asked for, else the calibration's, else `nccl`
/// where the cluster has devices, else "" (the ideal algorithms, without a library's cost). \throws
/// UsageError when what is asked for is neither `gloo` nor `nccl`, or not what was calibrated; also when
/// nothing is asked for and devices would lose NCCL to a calibration of another library
std::string backend_for(const std::string& asked, const Calibration* calibration, const Cluster& cluster);

}  // namespace stepcast
