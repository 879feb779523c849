#include "topologies/host_parts.hpp"

#include <map>

#include "core/error.hpp"
#include "topologies/devices.hpp"
#include "topologies/explicit_parts.hpp"

namespace stepcast {
namespace {

/// A link's bandwidth and latency.
struct PartLink {
  BytesPerSecond bandwidth;
  Seconds latency{0};
};

/// Of one kind in a host: more than any board has, and as many as searching their paths stays quick with.
constexpr int kMostPartsOfAKind = 128;

/// Adds the parts of one host. Names of nodes and links start with the host's.
class HostParts {
 public:
  HostParts(const YamlNode& node, const ClusterSettings& settings, int host, Cluster& cluster)
      : node_(node), settings_(settings), host_(host), cluster_(cluster) {}

  void add() {
    read_pcie();
    add_sockets();
    add_bridges();
    if (node_.has("devices")) add_devices();
    if (node_.has("nics")) add_nics();
    if (node_.has("nvlink")) add_nvlink();
  }

 private:
  [[nodiscard]] Host& host() { return cluster_.hosts[static_cast<std::size_t>(host_)]; }
  int add_node(const std::string& name, NodeKind kind, const std::string& device = "") {
    return add_part(cluster_, host_, name, kind, device);
  }
  void join(int a, int b, const PartLink& wire, LinkKind kind) {
    join_parts(cluster_, a, b, {"", a, b, wire.bandwidth, wire.latency, kind});
  }
  [[nodiscard]] int integer(const YamlNode& node, const std::string& key, int standard, int least,
                            int most = kMostPartsOfAKind) const {
    return node.has(key) ? settings_.integer(node.at(key), least, most) : standard;
  }
  [[nodiscard]] PartLink wire(const YamlNode& node, const PartLink& standard) const {
    PartLink result = standard;
    if (node.has("bandwidth")) result.bandwidth = settings_.bytes_per_second(node.at("bandwidth"));
    if (node.has("latency")) result.latency = settings_.seconds(node.at("latency"));
    return result;
  }

  /// Before devices, so that they know their wire: the first device's generation unless the file says one.
  void read_pcie() {
    if (node_.has("devices")) {
      const DeviceModel& device = device_of(node_.at("devices"));
      generation_ = device.pcie_generation;
      compute_capability_ = device.compute_capability;
    }
    int width = 16;
    if (node_.has("pcie")) {
      const YamlNode pcie = node_.at("pcie");
      pcie.allow_only({"generation", "width", "switches", "bandwidth", "latency"});
      generation_ = integer(pcie, "generation", generation_, 1, 6);
      width = integer(pcie, "width", width, 1, 32);
      bridges_wanted_ = integer(pcie, "switches", 0, 0);
    }
    pcie_ = {pcie_bandwidth(generation_, width), kPcieLatency};
    if (node_.has("pcie")) pcie_ = wire(node_.at("pcie"), pcie_);
  }

  [[nodiscard]] const DeviceModel& device_of(const YamlNode& devices) const {
    const YamlNode model = devices.at("model");
    try {
      return device_model(settings_.text(model));
    } catch (const InputError& error) {
      model.fail(error.what());
    }
  }

  void add_sockets() {
    const int count = integer(node_, "sockets", 1, 1);
    sockets_ = {host().node};
    const bool one_node = !node_.has("devices") && !node_.has("nics");
    PartLink smp{usual_smp_bandwidth(generation_, compute_capability_), kSmpLatency};
    if (node_.has("smp")) {
      const YamlNode given = node_.at("smp");
      given.allow_only({"bandwidth", "latency"});
      if (one_node) given.fail("means nothing without devices or nics, where a host is one node");
      smp = wire(given, smp);
    }
    if (one_node) return;
    cluster_.nodes[static_cast<std::size_t>(host().node)].name = host().name + "/socket0";
    for (int i = 1; i < count; ++i) {
      sockets_.push_back(add_node("socket" + std::to_string(i), NodeKind::kSocket));
      for (int other = 0; other < i; ++other)
        join(sockets_[static_cast<std::size_t>(other)], sockets_.back(), smp, LinkKind::kSmp);
    }
  }

  /// PCIe switches, evenly over the sockets.
  void add_bridges() {
    for (int i = 0; i < bridges_wanted_; ++i) {
      bridges_.push_back(add_node("pcie" + std::to_string(i), NodeKind::kPcieSwitch));
      join(bridges_.back(), even_share(sockets_, i, bridges_wanted_), pcie_, LinkKind::kPcie);
    }
  }

  /// Number `index` of `count` things belongs to this one of `among`.
  static int even_share(const std::vector<int>& among, int index, int count) {
    return among[static_cast<std::size_t>(index) * among.size() / static_cast<std::size_t>(count)];
  }
  [[nodiscard]] int root_of(int index, int count) const {
    return even_share(bridges_.empty() ? sockets_ : bridges_, index, count);
  }

  void add_devices() {
    const YamlNode devices = node_.at("devices");
    devices.allow_only({"model", "count"});
    const DeviceModel& model = device_of(devices);
    if (!model.gpu) devices.at("model").fail("'" + model.name + "' is a CPU; expected a GPU");
    const int count = integer(devices, "count", 1, 1);
    for (int i = 0; i < count; ++i) {
      const int device = add_node("gpu" + std::to_string(i), NodeKind::kDevice, model.name);
      join(device, root_of(i, count), pcie_, LinkKind::kPcie);
    }
  }

  void add_nics() {
    const YamlNode nics = node_.at("nics");
    nics.allow_only({"count"});
    const int count = integer(nics, "count", 1, 1);
    for (int i = 0; i < count; ++i) {
      const int nic = add_node("nic" + std::to_string(i), NodeKind::kNic);
      join(nic, root_of(i, count), pcie_, LinkKind::kPcie);
    }
  }

  void add_nvlink() {
    const YamlNode nvlink = node_.at("nvlink");
    nvlink.allow_only({"switch", "all_to_all", "pairs", "latency"});
    if (!node_.has("devices")) nvlink.fail("there are no devices to join");
    const DeviceModel& model = device_of(node_.at("devices"));
    if (model.nvlinks == 0) nvlink.fail("device '" + model.name + "' has no NVLink");
    Seconds latency = kNvLinkLatency;
    if (nvlink.has("latency")) latency = settings_.seconds(nvlink.at("latency"));
    const auto wire_of = [&](int links) {
      return PartLink{static_cast<double>(links) * model.nvlink_bandwidth, latency};
    };
    const std::vector<int> devices = host().devices;
    if (nvlink.has("switch") && nvlink.at("switch").boolean()) {
      const int hub = add_node("nvswitch", NodeKind::kNvSwitch);
      for (const int device : devices) join(device, hub, wire_of(model.nvlinks), LinkKind::kNvLink);
    }
    if (nvlink.has("all_to_all")) {
      const int links = settings_.integer(nvlink.at("all_to_all"), 1);
      const int others = static_cast<int>(devices.size()) - 1;
      if (links * others > model.nvlinks)
        nvlink.at("all_to_all")
            .fail("found " + std::to_string(links) + " to each of " + std::to_string(others) + ", device '" +
                  model.name + "' has " + std::to_string(model.nvlinks) + " links");
      const PartLink wire = wire_of(links);
      for (std::size_t a = 0; a < devices.size(); ++a)
        for (std::size_t b = a + 1; b < devices.size(); ++b)
          join(devices[a], devices[b], wire, LinkKind::kNvLink);
    }
    if (nvlink.has("pairs"))
      for (const YamlNode& pair : nvlink.at("pairs").items()) {
        const std::vector<YamlNode> parts = pair.items();
        if (parts.size() != 3) pair.fail("expected two devices and how many links: [gpu0, gpu1, 12]");
        const int links = settings_.integer(parts[2], 1);
        if (links > model.nvlinks)
          parts[2].fail("found " + std::to_string(links) + ", device '" + model.name + "' has " +
                        std::to_string(model.nvlinks) + " links");
        const int a = device_named(parts[0]);
        const int b = device_named(parts[1]);
        if (a == b) pair.fail("expected two different devices");
        join(a, b, wire_of(links), LinkKind::kNvLink);
      }
  }

  [[nodiscard]] int device_named(const YamlNode& name) {
    std::vector<std::string> known;
    for (std::size_t i = 0; i < host().devices.size(); ++i) {
      known.push_back("gpu" + std::to_string(i));
      if (name.text() == known.back()) return host().devices[i];
    }
    name.fail(unknown_name("device", name.text(), known));
  }

  const YamlNode& node_;
  const ClusterSettings& settings_;
  const int host_;
  Cluster& cluster_;
  PartLink pcie_;
  int generation_ = 5;          ///< of PCIe
  int compute_capability_ = 0;  ///< of the devices
  int bridges_wanted_ = 0;
  std::vector<int> sockets_, bridges_;
};

}  // namespace

const std::vector<std::string>& host_part_keys() {
  static const std::vector<std::string> keys{"sockets", "smp",  "devices", "pcie",
                                             "nvlink",  "nics", "nodes",   "links"};
  return keys;
}

void add_host_parts(const YamlNode& node, const ClusterSettings& settings, int host, Cluster& cluster) {
  if (node.has("nodes") || node.has("links"))
    add_explicit_parts(node, settings, host, cluster);
  else
    HostParts(node, settings, host, cluster).add();
}

int add_part(Cluster& cluster, int host, const std::string& name, NodeKind kind, const std::string& device) {
  Host& owner = cluster.hosts[static_cast<std::size_t>(host)];
  const int node = cluster.add_node({owner.name + "/" + name, kind, host, device});
  if (kind == NodeKind::kDevice) owner.devices.push_back(node);
  if (kind == NodeKind::kNic) owner.nics.push_back(node);
  return node;
}

void join_parts(Cluster& cluster, int a, int b, const Link& wire) {
  const std::string prefix = cluster.host_of(a).name + "/";
  const std::string other = cluster.node_name(b);
  Link link = wire;
  link.name = cluster.node_name(a) + "-" + (other.starts_with(prefix) ? other.substr(prefix.size()) : other);
  link.a = a;
  link.b = b;
  cluster.links.push_back(std::move(link));
}

BytesPerSecond usual_smp_bandwidth(int pcie_generation, int compute_capability) {
  if (compute_capability > 0 && compute_capability < 70) return BytesPerSecond(6e9);
  return BytesPerSecond(pcie_generation <= 3 ? 10e9 : pcie_generation == 4 ? 16e9 : 22e9);
}

BytesPerSecond pcie_bandwidth(int generation, int width) {
  constexpr double kGeneration3PerLane = 12e9 / 16.0;
  double per_lane = kGeneration3PerLane;
  for (int g = generation; g < 3; ++g) per_lane /= 2.0;
  for (int g = 3; g < generation; ++g) per_lane *= 2.0;
  return BytesPerSecond(width * per_lane);
}

}  // namespace stepcast
