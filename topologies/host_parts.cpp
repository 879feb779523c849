#include "topologies/host_parts.hpp"

#include <algorithm>

#include "core/ranges.hpp"
#include "topologies/explicit_parts.hpp"
#include "topologies/nccl_tables.hpp"

namespace stepcast {
namespace {

/// Maximum of one kind in a host: more than any board has, and few enough for a quick search of paths.
constexpr int kMaxPartsOfAKind = 128;

/// Adds the parts of an entry that describes them by rules.
struct HostParts {
  const YamlNode& host_node;
  const ClusterSettings& settings;
  HostBuilder builder;

  void add() {
    read_pcie();
    add_sockets();
    add_bridges();
    if (host_node.has("devices")) add_devices();
    if (host_node.has("nics")) add_nics();
    if (host_node.has("nvlink")) add_nvlink();
  }

  [[nodiscard]] int integer(const YamlNode& node, const std::string& key, int default_value, int least,
                            int most = kMaxPartsOfAKind) const {
    return node.has(key) ? settings.integer(node.at(key), least, most) : default_value;
  }
  [[nodiscard]] PartLink wire(const YamlNode& node, const PartLink& default_value) const {
    PartLink result = default_value;
    if (node.has("bandwidth")) result.bandwidth = settings.value(node.at("bandwidth")).bytes_per_second();
    if (node.has("latency")) result.latency = settings.value(node.at("latency")).seconds();
    return result;
  }

  /// Reads the wire of the devices: PCIe of the first device's generation unless the file sets it.
  void read_pcie() {
    if (host_node.has("devices")) {
      const DeviceModel& device = device_at(host_node.at("devices").at("model"), settings);
      generation = device.links.pcie_generation;
      compute_capability = device.compute_capability;
    }
    pcie_link = {pcie_bandwidth(generation, 16), kPcieLatency};
    if (!host_node.has("pcie")) return;
    const YamlNode pcie =
        host_node.at("pcie").allow_only({"generation", "width", "switches", "bandwidth", "latency"});
    if (pcie.has("bandwidth") && pcie.has("width"))
      pcie.at("width").fail("stands beside 'bandwidth'; expected one of both");
    generation = integer(pcie, "generation", generation, 1, 6);
    pcie_link.bandwidth = pcie_bandwidth(generation, integer(pcie, "width", 16, 1, 32));
    bridges_wanted = integer(pcie, "switches", 0, 0);
    pcie_link = wire(pcie, pcie_link);
  }

  void add_sockets() {
    const int count = integer(host_node, "sockets", 1, 1);
    sockets = {builder.host().node};
    const bool one_node = !host_node.has("devices") && !host_node.has("nics");
    PartLink smp{usual_smp_bandwidth(generation, compute_capability), kSmpLatency};
    if (host_node.has("smp")) {
      const YamlNode given = host_node.at("smp").allow_only({"bandwidth", "latency"});
      if (one_node) given.fail("has no effect without devices or nics, because the host is one node");
      smp = wire(given, smp);
    }
    if (one_node) return;
    sockets = builder.add_sockets(whole_numbers(0, count), smp);
  }

  /// Distributes PCIe switches evenly over the sockets.
  void add_bridges() {
    for (int i = 0; i < bridges_wanted; ++i)
      bridges.push_back(builder.add_bridge(even_share(sockets, i, bridges_wanted), pcie_link));
  }

  /// The element of `among` to which item `index` of `count` evenly distributed items belongs.
  static int even_share(const std::vector<int>& among, int index, int count) {
    return among[static_cast<std::size_t>(index) * among.size() / static_cast<std::size_t>(count)];
  }

  void add_devices() {
    const YamlNode devices = host_node.at("devices").allow_only({"model", "count"});
    const DeviceModel& model = device_at(devices.at("model"), settings);
    if (!model.gpu) devices.at("model").fail("'" + model.name + "' is a CPU; expected a GPU");
    add_ends(devices, "gpu", NodeKind::kDevice, model.name);
  }

  void add_nics() {
    host_node.at("nics").allow_only({"count"});
    add_ends(host_node.at("nics"), "nic", NodeKind::kNic);
  }

  /// Distributes the devices or NICs of an entry evenly over the PCIe switches or the sockets.
  void add_ends(const YamlNode& entry, const std::string& name, NodeKind kind,
                const std::string& device = "") {
    const int count = integer(entry, "count", 1, 1);
    const std::vector<int>& roots = bridges.empty() ? sockets : bridges;
    for (int i = 0; i < count; ++i)
      builder.add_below(even_share(roots, i, count), name + std::to_string(i), kind, pcie_link, device);
  }

  void add_nvlink() {
    const YamlNode nvlink = host_node.at("nvlink").allow_only({"switch", "all_to_all", "pairs", "latency"});
    if (!host_node.has("devices")) nvlink.fail("there are no devices to join");
    const DeviceModel& model = device_at(host_node.at("devices").at("model"), settings);
    if (model.links.nvlinks == 0) nvlink.fail("device '" + model.name + "' has no NVLink");
    Seconds latency = kNvLinkLatency;
    if (nvlink.has("latency")) latency = settings.value(nvlink.at("latency")).seconds();
    const auto wire_of = [&](int links) {
      return PartLink{static_cast<double>(links) * model.links.nvlink_bandwidth, latency};
    };
    const std::vector<int> devices = builder.host().devices;
    std::map<int, int> total;  // links by device
    const auto use = [&](int device, int links, const YamlNode& key) {
      if ((total[device] += links) > model.links.nvlinks)
        key.fail("found {} links of {}, device '{}' has {}", total[device], builder.name_in_host(device),
                 model.name, model.links.nvlinks);
    };
    if (nvlink.flag("switch") && (model.compute_capability == 0 || model.links.bridged))
      nvlink.fail("NVSwitches do not join devices such as '{}'; see cluster '{}'", model.name,
                  model.links.bridged ? "h100x8-pcie" : "mi300x8");
    if (nvlink.flag("switch"))
      for (const int device : devices) {
        total[device] = model.links.nvlinks;
        builder.join_nvswitch(device, wire_of(model.links.nvlinks));
      }
    if (nvlink.has("all_to_all")) {
      const int links = settings.integer(nvlink.at("all_to_all"), 1);
      for (const int device : devices)
        use(device, links * (static_cast<int>(devices.size()) - 1), nvlink.at("all_to_all"));
      for (std::size_t a = 0; a < devices.size(); ++a)
        for (std::size_t b = a + 1; b < devices.size(); ++b)
          builder.join(devices[a], devices[b], wire_of(links), LinkKind::kNvLink);
    }
    for (const YamlNode& pair : nvlink.items("pairs")) {
      const std::vector<YamlNode> parts = pair.items();
      if (parts.size() != 3) pair.fail("expected two devices and how many links: [gpu0, gpu1, 12]");
      const int links = settings.integer(parts[2], 1);
      const int a = device_named(parts[0]), b = device_named(parts[1]);
      if (a == b) pair.fail("expected two different devices");
      for (const int device : {a, b}) use(device, links, parts[2]);
      builder.join(a, b, wire_of(links), LinkKind::kNvLink);
    }
  }

  [[nodiscard]] int device_named(const YamlNode& name) {
    std::map<std::string, int> devices;
    for (const int device : builder.host().devices)
      devices.emplace("gpu" + std::to_string(devices.size()), device);
    return name.named("device", devices);
  }

  PartLink pcie_link{};
  int generation = 5;          ///< of PCIe
  int compute_capability = 0;  ///< of the devices
  int bridges_wanted = 0;
  std::vector<int> sockets{}, bridges{};
};

}  // namespace

const std::vector<std::string>& host_part_keys() {
  static const std::vector<std::string> keys{"sockets", "smp",  "devices", "pcie",
                                             "nvlink",  "nics", "nodes",   "links"};
  return keys;
}

void add_host_parts(const YamlNode& node, const ClusterSettings& settings, int host, Cluster& cluster) {
  if (node.has("nodes") || node.has("links")) return add_explicit_parts(node, settings, host, cluster);
  HostParts{node, settings, {cluster, host}}.add();
}

const DeviceModel& device_at(const YamlNode& name, const ClusterSettings& settings) {
  return name.placed([&]() -> const DeviceModel& { return device_model(settings.value(name).text()); });
}

int HostBuilder::add(const std::string& name, NodeKind kind, const std::string& device) {
  const int node = cluster_.add_node({host().name + "/" + name, kind, host_, device});
  if (kind == NodeKind::kDevice) host().devices.push_back(node);
  if (kind == NodeKind::kNic) host().nics.push_back(node);
  return node;
}

int HostBuilder::name_first_socket(const std::string& name) {
  cluster_.nodes[host().node].name = host().name + "/" + name;
  return host().node;
}

std::vector<int> HostBuilder::add_sockets(const std::vector<int>& numbers, const PartLink& smp) {
  std::vector<int> sockets;
  for (const int number : numbers) {
    const std::string name = "socket" + std::to_string(number);
    const int socket = sockets.empty() ? name_first_socket(name) : add(name, NodeKind::kSocket);
    for (const int other : sockets) join(other, socket, smp, LinkKind::kSmp);
    sockets.push_back(socket);
  }
  return sockets;
}

int HostBuilder::add_below(int above, const std::string& name, NodeKind kind, const PartLink& pcie,
                           const std::string& device) {
  const int node = add(name, kind, device);
  join(node, above, pcie, LinkKind::kPcie);
  return node;
}

int HostBuilder::add_bridge(int above, const PartLink& pcie) {
  return add_below(above, "pcie" + std::to_string(bridges_++), NodeKind::kPcieSwitch, pcie);
}

void HostBuilder::join(int a, int b, const PartLink& wire, LinkKind kind) {
  cluster_.links.push_back(
      {cluster_.node_name(a) + "-" + cluster_.name_in_host(b), a, b, wire.bandwidth, wire.latency, kind});
}

void HostBuilder::join_nvswitch(int device, const PartLink& wire, int domain) {
  const auto [at, is_new] = nvswitches_.try_emplace(domain, -1);
  if (is_new)
    at->second =
        add(nvswitches_.size() > 1 ? "nvswitch" + std::to_string(domain) : "nvswitch", NodeKind::kNvSwitch);
  join(device, at->second, wire, LinkKind::kNvLink);
}

BytesPerSecond usual_smp_bandwidth(int pcie_generation, int compute_capability) {
  if (compute_capability > 0 && compute_capability < 70) return BytesPerSecond(6e9);
  return BytesPerSecond(pcie_generation <= 3 ? 10e9 : pcie_generation == 4 ? 16e9 : 22e9);
}

BytesPerSecond pcie_bandwidth(int generation, int width) {
  const std::vector<double>& lanes = nccl_constants().pcie_lane;
  const int newest = static_cast<int>(lanes.size());
  const auto index = static_cast<std::size_t>(std::clamp(generation, 1, newest) - 1);
  return BytesPerSecond(width * (1e9 * lanes[index]));
}

}  // namespace stepcast
