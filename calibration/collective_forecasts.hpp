#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "core/units.hpp"
#include "schedule/schedule.hpp"
#include "sim/collectives/nccl_reached.hpp"

/// Measured collectives of NCCL, and what is forecast of them.
namespace stepcast {

/// One size: what a call took.
struct NcclSample {
  std::string device;  ///< as the driver calls it: `NVIDIA H100 80GB HBM3`; "" where the file does not say
  CollectiveKind kind = CollectiveKind::kAllReduce;
  int gpus = 2;
  int hosts = 1;
  std::string dtype;  ///< `half`; "" where the file does not say
  Bytes message;      ///< the total array, as nccl-tests' column `size` has it
  Seconds time;
  std::string where;  ///< `all_reduce.txt:31`, for errors
};

/// Forecasts of measured collectives of one host: of GPUs with NVLink at NVSwitches, of others two behind
/// each of four PCIe switches at two sockets.
class CollectiveForecasts {
 public:
  /// \param laws in place of those of the GPU's generation, or null; read as long as this lives
  explicit CollectiveForecasts(const NcclParameters* laws = nullptr) : laws_(laws) {}

  /// What a call takes. NVLS adds no int8. \param device of device_model()
  [[nodiscard]] Seconds of(const std::string& device, const NcclSample& sample);
  /// The group that the sample's GPUs are. \throws InputError where they are on several hosts, or more than
  /// eight
  const NcclGraph& graph(const std::string& device, const NcclSample& sample);

 private:
  struct World {
    explicit World(Cluster given, const NcclParameters* laws)
        : cluster(std::move(given)), graphs(cluster, laws) {}
    Cluster cluster;
    NcclGraphs graphs;
  };
  const NcclParameters* laws_;
  std::map<std::string, std::unique_ptr<World>> worlds_;  ///< by device
};

/// What a call takes in a group, by its laws.
Seconds nccl_time(const NcclGraph& graph, const NcclSample& sample);

/// The device of a sample by its driver's name, or `otherwise`. \throws InputError where there is neither
std::string device_of(const NcclSample& sample, const std::string& otherwise = "");

}  // namespace stepcast
