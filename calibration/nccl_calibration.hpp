#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/units.hpp"
#include "records/calibration.hpp"
#include "schedule/schedule.hpp"
#include "sim/collectives/nccl_reached.hpp"

/// Measured collectives of NCCL, their forecasts, and parameters of NCCL's kernels from them.
namespace stepcast {

/// Measured time of one size.
struct NcclSample {
  std::string device;  ///< the driver's name: `NVIDIA H100 80GB HBM3`; "" if unknown
  CollectiveKind kind = CollectiveKind::kAllReduce;
  int gpus = 2, hosts = 1;
  std::string dtype;  ///< `half`; "" if unknown
  Bytes message;      ///< the whole array: column `size` of nccl-tests
  Seconds time;
  std::string where;  ///< `all_reduce.txt:31`, for errors
};

/// Forecasts of collectives on one host. GPUs with NVLink are connected by NVSwitches; other GPUs, and those
/// whose NVLink is a bridge, in pairs by four PCIe switches on two sockets.
class CollectiveForecasts {
 public:
  /// Time of a call. NVLS cannot add int8. \param device of device_model()
  [[nodiscard]] Seconds of(const std::string& device, const NcclSample& sample);
  /// Group of the sample's GPUs. \throws InputError for several hosts or more than eight GPUs
  const NcclGraph& graph(const std::string& device, const NcclSample& sample);

 private:
  struct World {
    explicit World(Cluster given) : cluster(std::move(given)), graphs(cluster) {}
    Cluster cluster;
    NcclGraphs graphs;
  };
  std::map<std::string, std::unique_ptr<World>> worlds_;  ///< by device
};

/// Sentence on how these forecasts connect the GPUs of a host.
std::string assumed_connection(const std::string& device);

/// Time of a call in a group, by its parameters.
Seconds nccl_time(const NcclGraph& graph, const NcclSample& sample);

/// Device of a sample by the driver's name, or `otherwise`. \throws InputError if both are unknown
std::string device_of(const NcclSample& sample, const std::string& otherwise = "");

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
