#include "calibration/collective_forecasts.hpp"

#include <vector>

#include "core/error.hpp"
#include "core/table.hpp"
#include "topologies/devices.hpp"

namespace stepcast {
namespace {

constexpr int kMostGpus = 8;

/// Shipped cluster of eight such GPUs, and what connects them. Bridges connect pairs, beside PCIe.
std::pair<std::string, const char*> host_of(const DeviceModel& device) {
  const std::string settings = ":gpus=8,device=" + device.name;
  if (device.links.nvlinks > 0 && !device.links.bridged) return {"h100x4-nvlink" + settings, "NVSwitches"};
  return {"l40s-pcie" + settings, "PCIe switches in pairs"};
}

}  // namespace

Seconds nccl_time(const NcclGraph& graph, const NcclSample& sample) {
  const NcclLimits limits{.nvls = sample.dtype != "int8" && sample.dtype != "uint8"};
  return nccl_cost(graph, sample.kind, sample.message, limits).time(sample.message);
}

const NcclGraph& CollectiveForecasts::graph(const std::string& device, const NcclSample& sample) {
  if (sample.hosts > 1 || sample.gpus > kMostGpus)
    throw InputError("{}: found {} GPUs on {} hosts, expected at most 8 on one", sample.where, sample.gpus,
                     sample.hosts);
  std::unique_ptr<World>& world = worlds_[device];
  if (!world) world = std::make_unique<World>(load_cluster(host_of(device_model(device)).first), parameters_);
  std::vector<int> places = world->cluster.places();
  places.resize(sample.gpus);
  return world->graphs.of(places);
}

std::string assumed_connection(const std::string& device) {
  const auto [cluster, connection] = host_of(device_model(device));
  return fmt::format("GPUs of a host are connected by {}, as in cluster '{}'", connection, cluster);
}

Seconds CollectiveForecasts::of(const std::string& device, const NcclSample& sample) {
  return nccl_time(graph(device, sample), sample);
}

std::string device_of(const NcclSample& sample, const std::string& otherwise) {
  if (!otherwise.empty()) return device_model(otherwise).name;
  if (const DeviceModel* found = reported_device(sample.device)) return found->name;
  throw InputError("{}: device '{}' is none of {}; --device states what it is like", sample.where,
                   sample.device, joined(gpu_names()));
}

}  // namespace stepcast
