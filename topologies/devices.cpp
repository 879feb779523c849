#include "topologies/devices.hpp"

#include "core/error.hpp"
#include "core/file.hpp"
#include "core/yaml.hpp"

namespace stepcast {
namespace {

void read_nvlink(const YamlNode& node, DeviceModel& device) {
  node.allow_only({"links", "raw", "nccl"});
  device.nvlinks = static_cast<int>(node.at("links").integer());
  device.nvlink_raw = node.at("raw").bytes_per_second();
  device.nvlink_bandwidth = node.at("nccl").bytes_per_second();
}

DeviceModel read_device(const std::string& name, const YamlNode& node) {
  node.allow_only({"description", "reported_as", "kind", "compute_capability", "multiprocessors", "peak",
                   "memory", "memory_bandwidth", "nvlink", "pcie_generation", "kernel_launch", "power",
                   "source"});
  DeviceModel device;
  device.name = name;
  device.description = node.at("description").text();
  if (node.has("reported_as"))
    for (const YamlNode& words : node.at("reported_as").items()) device.reported_as.push_back(words.text());
  const std::string kind = node.at("kind").text();
  if (kind != "gpu" && kind != "cpu") node.at("kind").fail(unknown_name("kind", kind, {"cpu", "gpu"}));
  device.gpu = kind == "gpu";
  if (device.gpu) device.compute_capability = static_cast<int>(node.at("compute_capability").integer());
  device.multiprocessors = static_cast<int>(node.at("multiprocessors").integer());
  for (const std::string& dtype : node.at("peak").keys())
    device.peak[dtype] = node.at("peak").at(dtype).flop_per_second();
  if (!device.peak.contains("float32")) node.at("peak").fail("key 'float32' is missing");
  if (node.has("memory")) device.memory = node.at("memory").bytes();
  device.memory_bandwidth = node.at("memory_bandwidth").bytes_per_second();
  if (node.has("nvlink")) read_nvlink(node.at("nvlink"), device);
  device.pcie_generation = static_cast<int>(node.at("pcie_generation").integer());
  if (node.has("kernel_launch")) device.kernel_launch = node.at("kernel_launch").seconds();
  if (node.has("power")) device.power = node.at("power").watts();
  device.source = node.at("source").text();
  return device;
}

}  // namespace

std::filesystem::path device_file() { return home_folder() / "topologies" / "devices" / "devices.yaml"; }

const std::vector<DeviceModel>& device_models() {
  static const std::vector<DeviceModel> models = [] {
    std::vector<DeviceModel> result;
    const YamlNode file = YamlNode::load(device_file().string());
    for (const std::string& name : file.keys()) result.push_back(read_device(name, file.at(name)));
    return result;
  }();
  return models;
}

const DeviceModel& device_model(const std::string& name) {
  std::vector<std::string> known;
  for (const DeviceModel& device : device_models()) {
    if (device.name == name) return device;
    known.push_back(device.name);
  }
  throw InputError(unknown_name("device", name, known));
}

const DeviceModel* reported_device(const std::string& text) {
  for (const DeviceModel& device : device_models())
    for (const std::string& words : device.reported_as)
      if (text.find(words) != std::string::npos) return &device;
  return nullptr;
}

}  // namespace stepcast
