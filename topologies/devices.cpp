#include "topologies/devices.hpp"

#include <array>
#include <deque>

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

constexpr std::array kEstimateKeys{
    "compute_efficiency", "memory_efficiency", "attention_efficiency", "activations",        "process",
    "kernel_launch",      "operation_issue",   "collective_issue",     "rate_spread"};

KernelParameters read_laws(const std::string& generation, const YamlNode& node) {
  node.allow_only({"compute_capability", "products", "attention"});
  const YamlNode products = node.at("products");
  products.allow_only(
      {"start", "reached", "sustained", "depth", "tile", "waves", "split", "misaligned", "float8"});
  KernelParameters laws{.generation = generation,
                        .compute_capability = static_cast<int>(node.at("compute_capability").integer()),
                        .start = products.at("start").seconds(),
                        .reached = products.at("reached").number(),
                        .sustained = products.at("sustained").number(),
                        .depth = products.at("depth").number(),
                        .tile = products.at("tile").number(),
                        .waves = products.at("waves").number(),
                        .split = products.at("split").number()};
  if (products.has("float8")) laws.float8 = products.at("float8").number();
  const YamlNode misaligned = products.at("misaligned");
  for (const YamlNode& part : misaligned.items()) laws.misaligned.push_back(part.number());
  for (const double part : laws.misaligned)
    if (part <= 0.0 || part > 1.0) misaligned.fail("parts of the rate are above 0 and at most 1");
  for (const std::string& size : node.at("attention").keys()) {
    const YamlNode law = node.at("attention").at(size);
    law.allow_only({"full", "full_half", "causal", "causal_half"});
    laws.attention[std::stoi(size)] = {law.at("full").number(), law.at("full_half").number(),
                                       law.at("causal").number(), law.at("causal_half").number()};
  }
  return laws;
}

const KernelParameters& laws_of(int compute_capability) {
  const KernelParameters* newest = &kernel_laws().front();
  for (const KernelParameters& laws : kernel_laws())
    if (laws.compute_capability <= compute_capability) newest = &laws;
  return *newest;
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
  constexpr double kMostActivations = 1000.0, kMostAttention = 10.0, kMostSpread = 0.2;
  const std::string what = "device '" + device.name + "': " + key;
  const auto positive = [&](auto quantity) {
    if (quantity.count() <= 0.0) throw InputError(what + ": found '" + text + "', expected more than 0");
    return quantity;
  };
  std::vector<std::string> known{
      "activations",      "attention_efficiency", "collective_issue", "compute_efficiency", "kernel_launch",
      "memory_bandwidth", "memory_efficiency",    "operation_issue",  "process",            "rate_spread"};
  for (const auto& [dtype, rate] : device.peak) known.push_back(dtype);
  if (device.peak.contains(key)) {
    device.peak[key] = positive(parse_flop_per_second(text, what));
  } else if (key == "memory_bandwidth") {
    device.memory_bandwidth = positive(parse_bytes_per_second(text, what));
  } else if (key == "kernel_launch") {
    device.kernel_launch = parse_seconds(text, what);
  } else if (key == "operation_issue") {
    device.operation_issue = parse_seconds(text, what);
  } else if (key == "collective_issue") {
    device.collective_issue = parse_seconds(text, what);
  } else if (key == "rate_spread") {
    if (!device.gpu)
      throw InputError(what + ": found '" + text +
                       "' for a CPU, but only GPUs wait for the slowest of their kind");
    const auto value = number_in<double>(text);
    if (!value || !(*value >= 0.0 && *value <= kMostSpread))
      throw InputError(what + ": found '" + text + "', expected a number from 0 to 0.2");
    device.rate_spread = *value;
    device.sets_estimate = true;
  } else if (key == "process") {
    device.process = parse_bytes(text, what);
  } else if (key == "compute_efficiency" || key == "memory_efficiency") {
    (key == "compute_efficiency" ? device.compute_efficiency : device.memory_efficiency) =
        number_of(what, text, 1.0);
    device.sets_estimate = true;
  } else if (key == "attention_efficiency") {
    device.attention_efficiency = number_of(what, text, kMostAttention);
    device.sets_estimate = true;
  } else if (key == "activations") {
    device.activations = number_of(what, text, kMostActivations);
    device.sets_estimate = true;
  } else {
    throw InputError(what + ": " + unknown_name("setting", key, known));
  }
}

FittedTo read_fitted(const YamlNode& node) {
  node.allow_only({"rows", "error", "least_ranks", "most_ranks"});
  return {static_cast<int>(node.at("rows").integer()), node.at("error").number(),
          static_cast<int>(node.at("least_ranks").integer()),
          static_cast<int>(node.at("most_ranks").integer())};
}

/// What the file says of an estimate on the device.
void read_estimate(const YamlNode& node, DeviceModel& device) {
  for (const char* key : kEstimateKeys)
    if (node.has(key)) node.at(key).placed([&] { set(device, key, node.at(key).text()); });
  if (node.has("fitted")) device.fitted = read_fitted(node.at("fitted"));
}

/// A device that differs from another one in what an estimate takes for granted.
DeviceModel read_variant(const std::string& name, const YamlNode& node) {
  std::vector<std::string> keys{"like", "description", "fitted", "source"};
  keys.insert(keys.end(), kEstimateKeys.begin(), kEstimateKeys.end());
  node.allow_only(keys);
  DeviceModel device = node.at("like").placed([&] { return device_model(node.at("like").text()); });
  device.name = device.specification = name;
  device.reported_as.clear();
  if (node.has("description")) device.description = node.at("description").text();
  device.source = node.at("source").text();
  read_estimate(node, device);
  return device;
}

DeviceModel read_device(const std::string& name, const YamlNode& node) {
  if (node.has("like")) return read_variant(name, node);
  std::vector<std::string> keys{
      "description", "reported_as",      "kind",   "compute_capability", "multiprocessors", "peak",
      "memory",      "memory_bandwidth", "nvlink", "pcie_generation",    "power",           "fitted",
      "source"};
  keys.insert(keys.end(), kEstimateKeys.begin(), kEstimateKeys.end());
  node.allow_only(keys);
  DeviceModel device;
  device.name = device.specification = device.hardware = name;
  device.description = node.at("description").text();
  if (node.has("reported_as"))
    for (const YamlNode& words : node.at("reported_as").items()) device.reported_as.push_back(words.text());
  const std::string kind = node.at("kind").text();
  if (kind != "gpu" && kind != "cpu") node.at("kind").fail(unknown_name("kind", kind, {"cpu", "gpu"}));
  device.gpu = kind == "gpu";
  if (device.gpu) {
    device.operation_issue =
        Seconds(6e-6);  // eager operations take 5 to 8 us of a host, linear layers 15 to 25
    device.collective_issue = Seconds(25e-6);
    device.queued_launches = 1000;
    device.rate_spread = 0.0175;
  }
  if (device.gpu && node.has("compute_capability")) {
    constexpr int kHopper = 90;
    device.compute_capability = static_cast<int>(node.at("compute_capability").integer());
    device.process = 2.0 * Bytes((device.compute_capability >= kHopper ? 32.0 : 8.125) * 1024.0 * 1024.0);
    device.laws = laws_of(device.compute_capability);
    device.compute_efficiency = device.laws.reached * device.laws.sustained;
  }
  device.multiprocessors = static_cast<int>(node.at("multiprocessors").integer());
  for (const std::string& dtype : node.at("peak").keys())
    device.peak[dtype] = node.at("peak").at(dtype).flop_per_second();
  if (!device.peak.contains("float32")) node.at("peak").fail("key 'float32' is missing");
  if (node.has("memory")) device.memory = node.at("memory").bytes();
  device.memory_bandwidth = node.at("memory_bandwidth").bytes_per_second();
  if (node.has("nvlink")) read_nvlink(node.at("nvlink"), device);
  device.pcie_generation = static_cast<int>(node.at("pcie_generation").integer());
  if (node.has("power")) device.power = node.at("power").watts();
  device.source = node.at("source").text();
  read_estimate(node, device);
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

}  // namespace

std::filesystem::path device_file() { return home_folder() / "topologies" / "devices" / "devices.yaml"; }

const std::vector<KernelParameters>& kernel_laws() {
  static const std::vector<KernelParameters> laws = [] {
    std::vector<KernelParameters> result;
    const YamlNode file = YamlNode::load((device_file().parent_path() / "kernels.yaml").string());
    for (const std::string& name : file.keys()) result.push_back(read_laws(name, file.at(name)));
    return result;
  }();
  return laws;
}

namespace {

std::deque<DeviceModel>& devices() {  // references stay
  static std::deque<DeviceModel> known = [] {
    std::deque<DeviceModel> result;
    const YamlNode file = YamlNode::load(device_file().string());
    for (const std::string& name : file.keys()) result.push_back(read_device(name, file.at(name)));
    return result;
  }();
  return known;
}

}  // namespace

const std::deque<DeviceModel>& device_models() { return devices(); }

const DeviceModel& add_device(const std::string& path) {
  const YamlNode file = YamlNode::load(path);
  const std::vector<std::string> names = file.keys();
  if (names.size() != 1) file.fail("found " + std::to_string(names.size()) + " devices, expected one");
  for (DeviceModel& known : devices())
    if (known.name == names.front()) return known = read_device(names.front(), file.at(names.front()));
  return devices().emplace_back(read_device(names.front(), file.at(names.front())));
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
