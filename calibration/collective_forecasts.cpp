#include "calibration/collective_forecasts.hpp"

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
  const NcclLimits limits{.nvls = !is_int8(sample.dtype)};
  return nccl_cost(graph, sample.kind, sample.message, limits).time(sample.message);
}

const NcclGraph& CollectiveForecasts::graph(const std::string& device, const NcclSample& sample) {
  if (sample.hosts > 1 || sample.gpus > kMostGpus)
    throw InputError("{}: found {} GPUs on {} hosts, expected at most 8 on one", sample.where, sample.gpus,
                     sample.hosts);
  std::unique_ptr<World>& world = worlds_[device];
  if (!world) world = std::make_unique<World>(load_cluster(cluster_of(device_model(device))), parameters_);
  std::vector<int> places = world->cluster.places();
  places.resize(sample.gpus);
  return world->graphs.of(places);
}

Seconds CollectiveForecasts::of(const std::string& device, const NcclSample& sample) {
  return nccl_time(graph(device, sample), sample);
}

std::string device_of(const NcclSample& sample, const std::string& otherwise) {
  if (!otherwise.empty()) return device_model(otherwise).name;
  const DeviceModel* found = reported_device(sample.device);
  if (found != nullptr) return found->name;
  throw InputError("{}: device '{}' is none of {}", sample.where, sample.device, joined(gpu_names()));
}

}  // namespace stepcast
