#include "topologies/devices.hpp"

#include <algorithm>
#include <array>
#include <deque>
#include <ranges>
#include <variant>

#include "core/error.hpp"
#include "core/file.hpp"
#include "core/number.hpp"
#include "core/overloaded.hpp"
#include "core/ranges.hpp"
#include "core/specification.hpp"
#include "core/table.hpp"
#include "core/yaml.hpp"

namespace stepcast {
namespace {

constexpr int kChosenByName = 1'000'000;  // newer than every compute capability

void read_nvlink(const YamlNode& node, DeviceLinks& links) {
  node.allow_only({"links", "raw", "nccl", "bridge"});
  links.nvlinks = static_cast<int>(node.at("links").integer());
  links.nvlink_raw = node.at("raw").bytes_per_second();
  links.nvlink_bandwidth = node.at("nccl").bytes_per_second();
  links.bridged = node.flag("bridge");
}

/// `[part, half]` by mask; of forward and backward alike, or of each.
AttentionParameters read_attention(const YamlNode& node) {
  const auto rate = [](const YamlNode& from, const char* mask) {
    const std::vector<YamlNode> pair = from.at(mask).items();
    if (pair.size() != 2)
      from.at(mask).fail("expected [part of the peak rate, keys at which half is reached]");
    return AttentionRate{pair[0].number(), pair[1].number()};
  };
  const bool by_pass = node.has("forward");
  const YamlNode forward = by_pass ? node.at("forward") : node,
                 backward = by_pass ? node.at("backward") : node;
  for (const YamlNode& each : {forward, backward}) each.allow_only({"full", "causal"});
  return {rate(forward, "full"), rate(forward, "causal"), rate(backward, "full"), rate(backward, "causal")};
}

KernelParameters read_kernels(const std::string& generation, const YamlNode& node) {
  node.allow_only({"compute_capability", "cublas_workspace", "engine_workspace", "products", "attention",
                   "recipes", "casts", "scans", "grouped", "dispatch"});
  const YamlNode products =
      node.at("products")
          .allow_only({"start", "reached", "sustained", "depth", "tile", "waves", "split", "misaligned"});
  KernelParameters kernels{
      .generation = generation,
      .compute_capability = node.has("compute_capability")
                                ? static_cast<int>(node.at("compute_capability").integer())
                                : kChosenByName,
      .cublas_workspace = node.at("cublas_workspace").bytes(),
      .engine_workspace = node.at("engine_workspace").bytes(),
      .start = products.at("start").seconds(),
      .reached = products.at("reached").number(),
      .sustained = products.at("sustained").number(),
      .depth = products.at("depth").number(),
      .tile = products.at("tile").number(),
      .waves = products.at("waves").number(),
      .split = products.at("split").number()};
  if (node.has("casts")) kernels.casts = node.at("casts").number();
  if (node.has("scans")) kernels.scans = node.at("scans").number();
  if (node.has("dispatch")) {
    const YamlNode dispatch = node.at("dispatch").allow_only({"row", "part"});
    kernels.dispatch = {dispatch.at("row").seconds(), dispatch.at("part").number()};
  }
  if (node.has("grouped")) {
    const YamlNode grouped = node.at("grouped").allow_only({"half", "low"});
    kernels.grouped = grouped.at("half").number();
    kernels.grouped_low = grouped.at("low").number();
  }
  for (const auto& [recipe, rate] : entries_of(node, "recipes")) {
    rate.allow_only({"part", "depth"});
    kernels.recipes[recipe] = {rate.at("part").number(), rate.at("depth").number()};
  }
  const YamlNode misaligned = products.at("misaligned");
  kernels.misaligned = transformed(misaligned.items(), &YamlNode::number);
  for (const double part : kernels.misaligned)
    if (part <= 0.0 || part > 1.0) misaligned.fail("parts of the rate are above 0 and at most 1");
  for (const auto& [kind, sizes] : entries_of(node.at("attention")))
    for (const auto& [size, rates] : entries_of(sizes))
      kernels.attention[kind][std::stoi(size)] = read_attention(rates);
  return kernels;
}

const KernelParameters& kernels_named(const YamlNode& node) {
  return node.placed([&]() -> const KernelParameters& {
    return named(kernel_parameters(), &KernelParameters::generation, "generation", node.text());
  });
}

/// A number that a device can be given in a specification, or in the file.
struct DeviceSetting {
  const char* key;
  std::variant<double DeviceEstimate::*, Seconds LaunchOverhead::*, Bytes DeviceEstimate::*> member;
  double most = 0.0;             ///< of a plain number
  bool may_be_zero = false;      ///< of a plain number
  const char* cpu_refusal = "";  ///< why a CPU does not have it; "": it may
};

constexpr std::array<DeviceSetting, 10> kSettings{
    {{"activations", &DeviceEstimate::activations, 1000.0},
     {"attention_efficiency", &DeviceEstimate::attention_efficiency, 10.0},
     {"collective_issue", &LaunchOverhead::collective},
     {"compute_efficiency", &DeviceEstimate::compute_efficiency, 1.0},
     {"kernel_launch", &LaunchOverhead::kernel},
     {"memory_efficiency", &DeviceEstimate::memory_efficiency, 1.0},
     {"module_issue", &LaunchOverhead::module},
     {"operation_issue", &LaunchOverhead::operation},
     {"process", &DeviceEstimate::process},
     {"rate_spread", &DeviceEstimate::rate_spread, 0.2, true,
      "only GPUs wait for the slowest of their kind"}}};

std::vector<std::string> setting_names() {
  return transformed(kSettings, [](const DeviceSetting& setting) { return std::string(setting.key); });
}

double number_of(const DeviceSetting& setting, const std::string& what, const std::string& text) {
  const auto value = number_in<double>(text);
  if (value && *value <= setting.most && (*value > 0.0 || (setting.may_be_zero && *value == 0.0)))
    return *value;
  throw InputError("{}: found '{}', expected a number {}{:g}", what, text,
                   setting.may_be_zero ? "from 0 to " : "above 0 and at most ", setting.most);
}

void set(DeviceModel& device, const std::string& key, const std::string& text) {
  const std::string what = "device '" + device.name + "': " + key;
  const auto positive = [&](auto quantity) {
    if (quantity.count() <= 0.0) throw InputError("{}: found '{}', expected more than 0", what, text);
    return quantity;
  };
  if (device.peak.contains(key)) return void(device.peak[key] = positive(parse_flop_per_second(text, what)));
  if (key == "memory_bandwidth")
    return void(device.memory_bandwidth = positive(parse_bytes_per_second(text, what)));
  const auto* setting =
      std::ranges::find_if(kSettings, [&](const DeviceSetting& one) { return key == one.key; });
  if (setting == kSettings.end()) {
    std::vector<std::string> known = setting_names();
    known.emplace_back("memory_bandwidth");
    std::ranges::sort(known);
    for (const auto& [dtype, rate] : device.peak) known.push_back(dtype);
    throw InputError("{}: {}", what, unknown_name("setting", key, known));
  }
  if (!device.gpu && *setting->cpu_refusal != '\0')
    throw InputError("{}: found '{}' for a CPU, but {}", what, text, setting->cpu_refusal);
  std::visit(
      Overloaded{
          [&](double DeviceEstimate::*member) { device.estimate.*member = number_of(*setting, what, text); },
          [&](Seconds LaunchOverhead::*member) { device.launch.*member = parse_seconds(text, what); },
          [&](Bytes DeviceEstimate::*member) { device.estimate.*member = parse_bytes(text, what); }},
      setting->member);
}

FittedTo read_fitted(const YamlNode& node) {
  node.allow_only({"rows", "error", "least_ranks", "most_ranks"});
  return {static_cast<int>(node.at("rows").integer()), node.at("error").number(),
          static_cast<int>(node.at("least_ranks").integer()),
          static_cast<int>(node.at("most_ranks").integer())};
}

void read_estimate(const YamlNode& node, DeviceModel& device) {
  for (const DeviceSetting& setting : kSettings)
    if (node.has(setting.key))
      node.at(setting.key).placed([&] { set(device, setting.key, node.at(setting.key).text()); });
  if (node.has("fitted")) device.estimate.fitted = read_fitted(node.at("fitted"));
}

void allow_keys(const YamlNode& node, std::vector<std::string> keys) {
  const std::vector<std::string> settings = setting_names();
  keys.insert(keys.end(), settings.begin(), settings.end());
  node.allow_only(keys);
}

/// A device that differs from another one in what an estimate assumes.
DeviceModel read_variant(const std::string& name, const YamlNode& node) {
  allow_keys(node, {"like", "description", "fitted", "source"});
  DeviceModel device = node.at("like").placed([&] { return device_model(node.at("like").text()); });
  device.name = device.specification = name;
  device.about.reported_as.clear();
  if (node.has("description")) device.about.summary = node.at("description").text();
  device.about.source = node.at("source").text();
  read_estimate(node, device);
  return device;
}

/// Defaults of GPUs. A kernel takes the launch thread between 13.5 us, for linear layers in a loop on a DGX
/// (Transformer Engine's issue 2053), and the 25 to 45 us of LibTorch 2.11 in backwards of Llama's blocks on
/// an H100's Xeon; its forwards took 23 to 31 us (tests/replay/h100). By that issue Grace takes 2.5 times as
/// long. It counts as fast as Xeon, because NeMo's steps of mixtures of experts on GB200 are too short for
/// that. Modules of Transformer Engine 2.14 took 0.1 ms more than their kernels in the forward and 0.2 ms in
/// the backward if called alone on an H100's Xeon, and at least 0.25 and 0.5 ms in steps of Megatron: what
/// counts lies between (docs/research/own-h100.md).
void set_gpu_defaults(const YamlNode& node, DeviceModel& device) {
  device.launch = {.kernel = Seconds(20e-6),
                   .operation = Seconds(6e-6),
                   .module = Seconds(150e-6),
                   .collective = Seconds(25e-6),
                   .queued = 1000};
  device.estimate.rate_spread = 0.0175;
  if (node.has("compute_capability"))
    device.compute_capability = static_cast<int>(node.at("compute_capability").integer());
  if (node.has("kernels"))
    device.kernels = kernels_named(node.at("kernels"));
  else if (device.compute_capability > 0)
    device.kernels =
        last_up_to(kernel_parameters(), device.compute_capability, &KernelParameters::compute_capability);
  else
    return;
  device.estimate.process = 2.0 * device.kernels.cublas_workspace;
  device.estimate.compute_efficiency = device.kernels.reached * device.kernels.sustained;
}

DeviceModel read_device(const std::string& name, const YamlNode& node) {
  if (node.has("like")) return read_variant(name, node);
  allow_keys(node, {"description", "reported_as", "kind", "compute_capability", "kernels", "multiprocessors",
                    "peak", "memory", "memory_bandwidth", "nvlink", "pcie_generation", "c2c", "power",
                    "fitted", "source", "assumed"});
  DeviceModel device;
  device.name = device.specification = device.hardware = name;
  device.about.summary = node.at("description").text();
  device.about.reported_as = transformed(node.items("reported_as"), &YamlNode::text);
  device.gpu = node.at("kind").one_of("kind", {"cpu", "gpu"}) == "gpu";
  if (device.gpu) set_gpu_defaults(node, device);
  device.multiprocessors = static_cast<int>(node.at("multiprocessors").integer());
  for (const auto& [dtype, rate] : entries_of(node.at("peak"))) device.peak[dtype] = rate.flop_per_second();
  if (!device.peak.contains("float32")) node.at("peak").fail("key 'float32' is missing");
  if (node.has("memory")) device.memory = node.at("memory").bytes();
  device.memory_bandwidth = node.at("memory_bandwidth").bytes_per_second();
  if (node.has("nvlink")) read_nvlink(node.at("nvlink"), device.links);
  device.links.pcie_generation = static_cast<int>(node.at("pcie_generation").integer());
  if (node.has("c2c")) device.links.c2c = node.at("c2c").bytes_per_second();
  if (node.has("power")) device.power = node.at("power").watts();
  device.about.source = node.at("source").text();
  if (node.has("assumed")) device.about.assumed = node.at("assumed").text();
  read_estimate(node, device);
  return device;
}

std::deque<DeviceModel>& devices() {  // references stay
  static std::deque<DeviceModel> known = [] {
    std::deque<DeviceModel> result;
    for (const auto& [name, node] : entries_of(YamlNode::load(device_file().string())))
      result.push_back(read_device(name, node));
    return result;
  }();
  return known;
}

}  // namespace

std::filesystem::path device_file() { return home_folder() / "topologies" / "devices" / "devices.yaml"; }

const std::vector<KernelParameters>& kernel_parameters() {
  static const std::vector<KernelParameters> all = [] {
    const YamlNode file = YamlNode::shipped("topologies/devices/kernels.yaml");
    return transformed(file.keys(), [&](const auto& name) { return read_kernels(name, file.at(name)); });
  }();
  return all;
}

const std::deque<DeviceModel>& device_models() { return devices(); }

std::vector<std::string> gpu_names() {
  return transformed(device_models() | std::views::filter(&DeviceModel::gpu), &DeviceModel::name);
}

const DeviceModel& add_device(const std::string& path) {
  const YamlNode file = YamlNode::load(path);
  const std::vector<std::string> names = file.keys();
  if (names.size() != 1) file.fail("found {} devices, expected one", names.size());
  for (DeviceModel& known : devices())
    if (known.name == names.front()) return known = read_device(names.front(), file.at(names.front()));
  return devices().emplace_back(read_device(names.front(), file.at(names.front())));
}

const DeviceModel& device_model(const std::string& specification) {
  const Specification given = Specification::parse("device", specification);
  const DeviceModel& base = named(device_models(), &DeviceModel::name, "device", given.file);
  if (given.overrides.empty()) return base;
  static std::map<std::string, DeviceModel> known;  // references stay
  return cached(known, specification, [&] {
    DeviceModel device = base;
    device.specification = specification;
    for (const auto& [key, text] : given.overrides) set(device, key, text);
    return device;
  });
}

const DeviceModel* reported_device(const std::string& text) {
  const auto ends = [&](const DeviceModel& device, std::size_t at) {  // or an A100 would be an A10
    if (at == text.size() || device.compute_capability > 0) return at == text.size();
    return std::isalnum(static_cast<unsigned char>(text[at])) == 0;
  };
  for (const DeviceModel& device : device_models())
    for (const std::string& words : device.about.reported_as)
      if (const std::size_t at = text.find(words); at != std::string::npos && ends(device, at + words.size()))
        return &device;
  return nullptr;
}

}  // namespace stepcast
