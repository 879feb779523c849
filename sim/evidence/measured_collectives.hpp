#pragma once

#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "sim/collectives/nccl_reached.hpp"
#include "sim/evidence/accuracy.hpp"
#include "sim/evidence/nccl_samples.hpp"

/// Measured NCCL collectives with their forecasts.
namespace stepcast {

struct MeasuredCollective {
  NcclSample sample;
  std::string device;  ///< `h100-sxm`
  Seconds forecast;
  Seconds fitted;  ///< baseline: alpha + S / beta, fitted to all rows of its device, collective and GPUs
  Seconds sheet;   ///< baseline: bytes over the link rate of the data sheet, plus one launch
};

/// All rows of a CSV such as studies/measured/nccl_collectives.csv. \throws InputError as
/// read_nccl_samples(), and for a device without a data sheet
std::vector<MeasuredCollective> measured_collectives(const std::string& path);

/// Errors of the forecast and of both baselines for one device, collective and number of GPUs.
struct CollectiveErrors {
  std::string group;  ///< `h100-sxm all_reduce 8`
  Errors forecast, fitted, sheet;
};

std::vector<CollectiveErrors> collective_errors(const std::vector<MeasuredCollective>& rows);
SetAccuracy accuracy_of(const std::string& set, const std::vector<MeasuredCollective>& rows);

/// A table of collective_errors(), and a line on all rows.
std::string measured_collectives_text(const std::vector<MeasuredCollective>& rows);

}  // namespace stepcast
