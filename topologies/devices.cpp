#include "topologies/devices.hpp"

#include "core/error.hpp"
#include "core/file.hpp"
#include "core/number.hpp"
#include "core/specification.hpp"
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
  device.name = device.specification = name;
  device.description = node.at("description").text();
  if (node.has("reported_as"))
    for (const YamlNode& words : node.at("reported_as").items()) device.reported_as.push_back(words.text());
  const std::string kind = node.at("kind").text();
  if (kind != "gpu" && kind != "cpu") node.at("kind").fail(unknown_name("kind", kind, {"cpu", "gpu"}));
  device.gpu = kind == "gpu";
  if (device.gpu) {
    constexpr int kHopper = 90;
    device.compute_capability = static_cast<int>(node.at("compute_capability").integer());
    device.process = 2.0 * Bytes((device.compute_capability >= kHopper ? 32.0 : 8.125) * 1024.0 * 1024.0);
  }
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

const DeviceModel& named_device(const std::string& name) {
  std::vector<std::string> known;
  for (const DeviceModel& device : device_models()) {
    if (device.name == name) return device;
    known.push_back(device.name);
  }
  throw InputError(unknown_name("device", name, known));
}

/// A number above 0 and at most `most`.
double number_of(const std::string& what, const std::string& text, double most) {
  const auto value = number_in<double>(text);
  if (!value || !(*value > 0.0 && *value <= most))
    throw InputError(what + ": found '" + text + "', expected a number above 0 and at most " +
                     std::to_string(static_cast<int>(most)));
  return *value;
}

void set(DeviceModel& device, const std::string& key, const std::string& text) {
  constexpr double kMostActivations = 1000.0;
  const std::string what = "device '" + device.name + "': " + key;
  const auto positive = [&](auto quantity) {
    if (quantity.count() <= 0.0) throw InputError(what + ": found '" + text + "', expected more than 0");
    return quantity;
  };
  std::vector<std::string> known{"activations",      "compute_efficiency", "kernel_launch",
                                 "memory_bandwidth", "memory_efficiency",  "process"};
  for (const auto& [dtype, rate] : device.peak) known.push_back(dtype);
  if (device.peak.contains(key)) {
    device.peak[key] = positive(parse_flop_per_second(text, what));
  } else if (key == "memory_bandwidth") {
    device.memory_bandwidth = positive(parse_bytes_per_second(text, what));
  } else if (key == "kernel_launch") {
    device.kernel_launch = parse_seconds(text, what);
  } else if (key == "process") {
    device.process = parse_bytes(text, what);
  } else if (key == "compute_efficiency" || key == "memory_efficiency") {
    (key == "compute_efficiency" ? device.compute_efficiency : device.memory_efficiency) =
        number_of(what, text, 1.0);
    device.sets_estimate = true;
  } else if (key == "activations") {
    device.activations = number_of(what, text, kMostActivations);
    device.sets_estimate = true;
  } else {
    throw InputError(what + ": " + unknown_name("setting", key, known));
  }
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

const DeviceModel& device_model(const std::string& specification) {
  const Specification given = Specification::parse("device", specification);
  if (given.overrides.empty()) return named_device(given.file);
  static std::map<std::string, DeviceModel> known;  // references stay
  if (const auto found = known.find(specification); found != known.end()) return found->second;
  DeviceModel device = named_device(given.file);
  device.specification = specification;
  for (const auto& [key, text] : given.overrides) set(device, key, text);
  return known.emplace(specification, std::move(device)).first->second;
}

const DeviceModel* reported_device(const std::string& text) {
  for (const DeviceModel& device : device_models())
    for (const std::string& words : device.reported_as)
      if (text.find(words) != std::string::npos) return &device;
  return nullptr;
}

}  // namespace stepcast
