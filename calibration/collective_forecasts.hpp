#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "core/units.hpp"
#include "schedule/schedule.hpp"
#include "sim/collectives/nccl_reached.hpp"

/// Measured collectives of NCCL and their forecasts.
namespace stepcast {

/// Measured time of one size.
struct NcclSample {
  std::string device;  ///< the driver's name: `NVIDIA H100 80GB HBM3`; "" if unknown
  CollectiveKind kind = CollectiveKind::kAllReduce;
  int gpus = 2;
  int hosts = 1;
  std::string dtype;  ///< `half`; "" if unknown
  Bytes message;      ///< the whole array: column `size` of nccl-tests
  Seconds time;
  std::string where;  ///< `all_reduce.txt:31`, for errors
};

/// Forecasts of collectives on one host. GPUs with NVLink are connected by NVSwitches; other GPUs, and those
/// whose NVLink is a bridge, in pairs by four PCIe switches on two sockets.
class CollectiveForecasts {
 public:
  /// \param parameters replace those of the GPU's generation
  explicit CollectiveForecasts(const std::optional<NcclParameters>& parameters = std::nullopt)
      : parameters_(parameters) {}

  /// Time of a call. NVLS cannot add int8. \param device of device_model()
  [[nodiscard]] Seconds of(const std::string& device, const NcclSample& sample);
  /// Group of the sample's GPUs. \throws InputError for several hosts or more than eight GPUs
  const NcclGraph& graph(const std::string& device, const NcclSample& sample);

 private:
  struct World {
    World(Cluster given, const std::optional<NcclParameters>& parameters)
        : cluster(std::move(given)), graphs(cluster, parameters) {}
    Cluster cluster;
    NcclGraphs graphs;
  };
  const std::optional<NcclParameters> parameters_;
  std::map<std::string, std::unique_ptr<World>> worlds_;  ///< by device
};

/// Sentence on how these forecasts connect the GPUs of a host.
std::string assumed_connection(const std::string& device);

/// Time of a call in a group, by its parameters.
Seconds nccl_time(const NcclGraph& graph, const NcclSample& sample);

/// Device of a sample by the driver's name, or `otherwise`. \throws InputError if both are unknown
std::string device_of(const NcclSample& sample, const std::string& otherwise = "");

}  // namespace stepcast
