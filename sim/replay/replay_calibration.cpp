#include "core/error.hpp"
#include "sim/replay/replay.hpp"
#include "topologies/devices.hpp"

namespace stepcast {

std::optional<NcclParameters> calibrated_nccl(const Calibration* calibration, const Cluster& cluster) {
  if (calibration == nullptr || calibration->nccl.empty()) return {};
  const DeviceModel& measured = device_model(calibration->nccl.device);
  for (const Node& node : cluster.nodes)
    if (node.kind == NodeKind::kDevice && device_model(node.device).name != measured.name)
      throw UsageError("the calibration is of NCCL on {}, cluster '{}' has {}", measured.name, cluster.name,
                       device_model(node.device).name);
  NcclParameters parameters = nccl_parameters(measured.collectives_as());
  parameters.set(calibration->nccl.parameters);
  return parameters;
}

int shared_cores(const Calibration* calibration, const Cluster& cluster) {
  if (cluster.shared_cores > 0 || calibration == nullptr) return cluster.shared_cores;
  return calibration->cluster.shared_cores;
}

}  // namespace stepcast
