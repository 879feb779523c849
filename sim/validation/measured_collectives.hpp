#pragma once

#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "sim/collectives/nccl_reached.hpp"
#include "sim/validation/nccl_samples.hpp"

/// Collectives of NCCL that others measured, beside what is forecast of them.
namespace stepcast {

struct MeasuredCollective {
  NcclSample sample;
  std::string device;  ///< `h100-sxm`
  Seconds forecast;
  Seconds
      fitted;  ///< trivial: alpha + S / beta, fitted to all rows of this device, collective and number of GPUs, this among them
  Seconds sheet;  ///< trivial: what the collective moves over the link's rate of the data sheet, and a launch
};

/// All rows of a CSV such as studies/measured/nccl_collectives.csv. \throws InputError as read_nccl_samples(), and for a
/// device that no data sheet is of
std::vector<MeasuredCollective> measured_collectives(const std::string& path);

/// Rows of one device, collective and number of GPUs. Errors are geometric means of max(f/m, m/f) - 1.
struct CollectiveError {
  std::string device;
  CollectiveKind kind = CollectiveKind::kAllReduce;
  int gpus = 2;
  std::size_t rows = 0;
  double forecast = 0.0, worst = 0.0, fitted = 0.0, sheet = 0.0;
};

std::vector<CollectiveError> collective_errors(const std::vector<MeasuredCollective>& rows);

/// A table of collective_errors(), and a line on all rows.
std::string measured_collectives_text(const std::vector<MeasuredCollective>& rows);

}  // namespace stepcast
