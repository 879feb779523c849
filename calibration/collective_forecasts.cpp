#include "calibration/collective_forecasts.hpp"

#include <algorithm>
#include <vector>

#include "core/error.hpp"
#include "core/table.hpp"
#include "topologies/devices.hpp"

namespace stepcast {
namespace {

constexpr int kMostGpus = 8;

std::string cluster_of(const DeviceModel& device) {
  return (device.links.nvlinks > 0 ? "h100x4-nvlink:gpus=8,device=" : "l40s-pcie:gpus=8,device=") +
         device.name;
}

bool is_int8(const std::string& dtype) { return dtype == "int8" || dtype == "uint8"; }

}  // namespace

Seconds nccl_time(const NcclGraph& graph, const NcclSample& sample) {
  if (sample.kind == CollectiveKind::kAllToAll)
    return nccl_all_to_all(graph, sample.message).time(sample.message);
  std::vector<NcclCost> costs = nccl_costs(graph, sample.kind, sample.message);
  if (is_int8(sample.dtype))
    std::erase_if(costs, [](const NcclCost& cost) { return cost.algorithm == NcclAlgorithm::kNvls; });
  const NcclCost choice = *std::min_element(
      costs.begin(), costs.end(),
      [&](const NcclCost& a, const NcclCost& b) { return a.time(sample.message) < b.time(sample.message); });
  return nccl_reached(graph, sample.kind, sample.message, choice).time(sample.message);
}

const NcclGraph& CollectiveForecasts::graph(const std::string& device, const NcclSample& sample) {
  if (sample.hosts > 1 || sample.gpus > kMostGpus)
    throw InputError(sample.where + ": found " + std::to_string(sample.gpus) + " GPUs on " +
                     std::to_string(sample.hosts) + " hosts, expected at most 8 on one");
  std::unique_ptr<World>& world = worlds_[device];
  if (!world) world = std::make_unique<World>(load_cluster(cluster_of(device_model(device))), laws_);
  std::vector<int> places = world->cluster.places();
  places.resize(static_cast<std::size_t>(sample.gpus));
  return world->graphs.of(places);
}

Seconds CollectiveForecasts::of(const std::string& device, const NcclSample& sample) {
  return nccl_time(graph(device, sample), sample);
}

std::string device_of(const NcclSample& sample, const std::string& otherwise) {
  if (!otherwise.empty()) return device_model(otherwise).name;
  const DeviceModel* found = reported_device(sample.device);
  if (found != nullptr) return found->name;
  std::vector<std::string> names;
  for (const DeviceModel& device : device_models())
    if (device.gpu) names.push_back(device.name);
  throw InputError(sample.where + ": device '" + sample.device + "' is none of " + joined(names));
}

}  // namespace stepcast
