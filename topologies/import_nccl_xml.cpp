#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>
#include <pugixml.hpp>
#include <set>
#include <utility>

#include "core/number.hpp"
#include "core/ranges.hpp"
#include "core/table.hpp"
#include "core/text.hpp"
#include "topologies/importer.hpp"

/// Reads the file that NCCL and RCCL write to NCCL_TOPO_DUMP_FILE, as NCCL does (src/graph/xml.cc, topo.cc).
namespace stepcast {
namespace {

constexpr int kMaxLevels = 32;  // of nested PCIe switches
constexpr int kMaxNumber = 1'000'000;
constexpr std::array<std::string_view, 19> kVirtualInterfaces{
    "docker", "veth", "br-", "br0", "virbr", "vnet", "lxc",    "lxdbr", "cni",  "flannel",
    "cali",   "kube", "tun", "tap", "dummy", "ovs",  "podman", "wg",    "vmnet"};

/// PCIe generation of a transfer rate in GT/s. As in NCCL other rates count as generation 3.
int pcie_generation(double transfers) {
  static const std::map<double, int> kGenerations{{2.5, 1},  {5.0, 2},  {8.0, 3},
                                                  {16.0, 4}, {32.0, 5}, {64.0, 6}};
  return value_or(kGenerations, transfers, 3);
}

/// Bandwidth between sockets by the processor (src/graph/topo.h); none if NCCL has no value.
std::optional<BytesPerSecond> smp_bandwidth(const std::string& vendor, int family, int model) {
  if (vendor == "AuthenticAMD") return BytesPerSecond(16e9);
  if (vendor != "GenuineIntel" || family != 6) return std::nullopt;
  if (model >= 207) return BytesPerSecond(40e9);  // Emerald Rapids
  if (model >= 143) return BytesPerSecond(22e9);  // Sapphire Rapids
  if (model >= 85) return BytesPerSecond(10e9);   // Skylake
  return BytesPerSecond(6e9);                     // Broadwell
}

struct XmlHost {
  const std::string& xml_text;
  const std::string& file;
  const ImportOptions& options;

  ImportedCluster read() {
    const pugi::xml_node system = parse();
    choose_device(system);
    add_sockets(system);
    for (const auto& [socket, cpu] : sockets) {
      for (const pugi::xml_node& pci : cpu.children("pci")) add_pci(pci, socket, 1);
      for (const pugi::xml_node& nic : cpu.children("nic")) add_nets(nic, socket, host.pcie());
    }
    if (gpus.empty()) fail(system, "found no GPU in a <pci> in a <cpu>, expected at least one");
    for (const auto& [node, gpu] : gpus) add_nvlinks(node, gpu);
    join_peers();
    if (bare) assume_nvswitch();
    note_left_out();
    describe();
    return std::move(host.imported);
  }

  [[nodiscard]] Cluster& cluster() { return host.imported.cluster; }

  // --- places and attributes ---

  [[nodiscard]] FilePosition place_at(std::size_t offset) const {
    const std::size_t end = std::min(offset, xml_text.size());
    const std::size_t line_start = end == 0 ? std::string::npos : xml_text.rfind('\n', end - 1);
    const auto lines = std::count(xml_text.begin(), xml_text.begin() + end, '\n');
    return {static_cast<std::size_t>(lines) + 1,
            line_start == std::string::npos ? end + 1 : end - line_start};
  }
  [[nodiscard]] FilePosition place_of(const pugi::xml_node& element) const {
    // The offset is that after its <.
    return place_at(static_cast<std::size_t>(std::max<std::ptrdiff_t>(0, element.offset_debug() - 1)));
  }
  template <class... Values>
  [[noreturn]] void fail(const pugi::xml_node& element, fmt::format_string<Values...> message,
                         Values&&... values) const {
    fail_at(file, place_of(element), "<{}>: {}", element.name(),
            fmt::format(message, std::forward<Values>(values)...));
  }
  [[nodiscard]] std::string required(const pugi::xml_node& element, const char* name) const {
    const pugi::xml_attribute attribute = element.attribute(name);
    if (!attribute) fail(element, "attribute '{}' is missing", name);
    return attribute.value();
  }
  /// A whole number from `least`, decimal or as 0x1f.
  [[nodiscard]] int integer(const pugi::xml_node& element, const char* name, int least) const {
    const std::string value = required(element, name);
    const bool hex = value.starts_with("0x");
    const auto number = number_in<int>(std::string_view(value).substr(hex ? 2 : 0), hex ? 16 : 10);
    if (!number || *number < least || *number > kMaxNumber)
      fail(element, "found {}='{}', expected a whole number from {} to {}", name, value, least, kMaxNumber);
    return *number;
  }
  [[nodiscard]] int integer_or(const pugi::xml_node& element, const char* name, int least,
                               int otherwise) const {
    return element.attribute(name) ? integer(element, name, least) : otherwise;
  }

  // --- the document ---

  pugi::xml_node parse() {
    const pugi::xml_parse_result result =
        document.load_buffer(xml_text.data(), xml_text.size(), pugi::parse_default, pugi::encoding_utf8);
    if (!result)
      fail_at(file, place_at(static_cast<std::size_t>(std::max<std::ptrdiff_t>(0, result.offset))),
              "this is not XML: {}; expected the file of NCCL_TOPO_DUMP_FILE", result.description());
    const pugi::xml_node root = document.document_element();
    if (std::string(root.name()) != "system")
      fail(root, "expected <system>, as in the file of NCCL_TOPO_DUMP_FILE");
    if (!root.child("cpu")) fail(root, "expected at least one <cpu> in it");
    if (const pugi::xml_node link = root.find_node([](const pugi::xml_node& n) { return is(n, "xgmi"); }))
      fail(link, "{}", kNoXgmi);
    return root;
  }

  /// GPUs that fit the compute capability and links, unless the options name it.
  void choose_device(const pugi::xml_node& system) {
    const pugi::xml_node first = system.find_node([](const pugi::xml_node& n) { return is(n, "gpu"); });
    const pugi::xml_node plain = system.find_node([](const pugi::xml_node& n) { return is_bare_gpu(n); });
    if (!first && !plain)
      fail(system, "found no <gpu> and no <pci> of the class 0x0302, expected at least one");
    bare = !first;
    if (bare) return host.choose_device({}, "", place_of(plain));
    int most = 0;
    for (const pugi::xpath_node& gpu : system.select_nodes(".//gpu")) {
      int links = 0;
      for (const pugi::xml_node& nvlink : gpu.node().children("nvlink")) links += integer(nvlink, "count", 1);
      most = std::max(most, links);
    }
    const int capability = integer_or(first, "sm", 0, 0);
    std::vector<std::string> fitting;
    for (const DeviceModel& device : device_models())
      if (capability > 0 && device.compute_capability == capability && device.links.nvlinks >= most)
        fitting.push_back(device.name);
    host.choose_device(fitting, fmt::format("sm {} and {} NVLinks", capability, most), place_of(first));
    for (const pugi::xpath_node& gpu : system.select_nodes(".//gpu"))
      if (const int own = integer_or(gpu.node(), "sm", 0, 0);
          own > 0 && own != host.device().compute_capability)
        fail(gpu.node(), "found sm='{}', device {} has {}", own, host.device().name,
             host.device().compute_capability);
  }

  static bool is(const pugi::xml_node& node, const std::string& name) { return node.name() == name; }
  /// Files of clouds list PCI functions by class alone: 0x0302 is a GPU, 0x0207 and 0x0200 a NIC.
  static bool has_class(const pugi::xml_node& node, const std::string& number) {
    return is(node, "pci") && std::string_view(node.attribute("class").value()).starts_with(number);
  }
  static bool is_bare_gpu(const pugi::xml_node& node) { return has_class(node, "0x0302"); }
  static bool is_bare_nic(const pugi::xml_node& node) {
    return has_class(node, "0x0207") || has_class(node, "0x0200");
  }

  // --- sockets ---

  void add_sockets(const pugi::xml_node& system) {
    std::map<int, pugi::xml_node> cpus;
    const std::string hash = system.child("cpu").attribute("host_hash").value();
    int threads = 0;
    for (const pugi::xml_node& cpu : system.children("cpu")) {
      if (cpu.attribute("host_hash").value() != hash)
        fail(cpu, "found a second host_hash, expected the topology of one host");
      int number = integer_or(cpu, "numaid", -1, -1);
      if (number < 0) number = lowest_free(cpus);
      if (!cpus.emplace(number, cpu).second)
        fail(cpu, "found numaid '{}' twice, expected another number", number);
      threads += processors(cpu);
    }
    const pugi::xml_node cpu = cpus.begin()->second;
    const std::optional<BytesPerSecond> known =
        smp_bandwidth(cpu.attribute("vendor").value(), integer_or(cpu, "familyid", -1, 0),
                      integer_or(cpu, "modelid", -1, 0));
    cluster().hosts[0].cores = std::max(1, threads);
    sockets = host.add_sockets(cpus, known);
  }

  /// Logical processors in a mask such as `ffff0000,0000ffff`.
  [[nodiscard]] int processors(const pugi::xml_node& cpu) const {
    int bits = 0;
    for (const char c : lower(cpu.attribute("affinity").value())) {
      if (c == ',') continue;
      const auto digit = number_in<unsigned>({&c, 1}, 16);
      if (!digit) fail(cpu, "found '{}' in affinity, expected hexadecimal digits and commas", c);
      bits += std::popcount(*digit);
    }
    return bits;
  }

  // --- PCIe ---

  /// Link from a PCIe function to the node above it. Without a rate the device's generation holds. Bridges of
  /// an emulated machine, which report 2.5 GT/s x1, have 16 lanes of it.
  [[nodiscard]] PartLink link_of(const pugi::xml_node& pci) {
    if (options.pcie_generation > 0)
      return {pcie_bandwidth(options.pcie_generation, lanes_of(pci)), kPcieLatency};
    const std::string speed = pci.attribute("link_speed").value();  // 32.0 GT/s PCIe
    double transfers = 0.0;
    std::from_chars(speed.data(), speed.data() + speed.size(), transfers);
    const bool emulated = transfers <= 2.5 && integer_or(pci, "link_width", 0, 0) <= 1;
    const bool has_rate = transfers > 0.0;
    if (emulated || !has_rate) unrated.insert(pci.attribute("busid").value());
    if (emulated) return host.pcie();
    const int generation = has_rate ? pcie_generation(transfers) : host.device().links.pcie_generation;
    return {pcie_bandwidth(generation, lanes_of(pci)), kPcieLatency};
  }
  [[nodiscard]] int lanes_of(const pugi::xml_node& pci) const {
    const int lanes = integer_or(pci, "link_width", 0, 0);
    if (lanes > 32) fail(pci, "found link_width='{}', expected at most 32 lanes", lanes);
    return lanes == 0 ? 16 : lanes;
  }

  void add_pci(const pugi::xml_node& pci, int above, int level) {
    if (level > kMaxLevels) fail(pci, "expected at most {} levels of <pci>", kMaxLevels);
    const auto is_part = [this](const pugi::xml_node& n) {
      return is(n, "gpu") || (is(n, "net") && !is_virtual(n)) || (bare && (is_bare_gpu(n) || is_bare_nic(n)));
    };
    if (!is_part(pci) && !pci.find_node(is_part)) return;  // a disk, or a bridge to nothing
    const PartLink link = link_of(pci);
    if (bare && is_bare_gpu(pci)) return add_gpu(pci, {}, above, link);
    if (bare && is_bare_nic(pci)) return add_nic("", above, link);
    if (const pugi::xml_node gpu = pci.child("gpu")) return add_gpu(pci, gpu, above, link);
    if (const pugi::xml_node nic = pci.child("nic"); nic && !pci.child("pci"))
      return add_nets(nic, above, link);
    const int bridge = host.parts.add_bridge(above, link);
    for (const pugi::xml_node& below : pci.children("pci")) add_pci(below, bridge, level + 1);
    for (const pugi::xml_node& nic : pci.children("nic")) add_nets(nic, bridge, link);
  }

  void add_gpu(const pugi::xml_node& pci, const pugi::xml_node& gpu, int above, const PartLink& link) {
    const int number = bare ? static_cast<int>(gpus.size()) : integer(gpu, "dev", 0);
    const int node = host.parts.add_below(above, "gpu" + std::to_string(number), NodeKind::kDevice, link,
                                          host.device().name);
    if (!by_bus.emplace(lower(required(pci, "busid")), node).second)
      fail(pci, "found busid '{}' twice, expected another", required(pci, "busid"));
    gpus.emplace_back(node, gpu);
  }

  /// Interfaces of containers and virtual networks, which NCCL lists beside adapters.
  static bool is_virtual(const pugi::xml_node& net) {
    const std::string_view name = net.attribute("name").value();
    if (name == "lo") return true;
    return std::ranges::any_of(kVirtualInterfaces,
                               [&](std::string_view start) { return name.starts_with(start); });
  }

  /// \param name "": `nic0`, `nic1`, ...
  void add_nic(std::string name, int above, const PartLink& link) {
    if (name.empty()) name = "nic" + std::to_string(cluster().hosts[0].nics.size());
    host.parts.add_below(above, name, NodeKind::kNic, link);
  }

  /// Adds the ports of a card. Several ports share its PCIe link.
  void add_nets(const pugi::xml_node& nic, int above, const PartLink& link) {
    std::vector<pugi::xml_node> nets;
    for (const pugi::xml_node& net : nic.children("net")) {
      if (!is_virtual(net))
        nets.push_back(net);
      else
        virtual_nets.emplace_back(net.attribute("name").value());
    }
    const int over = nets.size() > 1 ? host.parts.add_bridge(above, link) : above;
    for (const pugi::xml_node& net : nets) {
      add_nic(net.attribute("name").value(), over, link);
      if (net.attribute("speed")) rates.insert(integer(net, "speed", 0));
    }
  }

  void note_left_out() {
    if (!virtual_nets.empty())
      host.imported.ignored.push_back("virtual interfaces are no NICs: " + joined(virtual_nets));
    if (!unrated.empty())
      host.imported.assumed.push_back(
          fmt::format("PCIe generation {} for {}, whose rate in the file is missing or an emulated "
                      "machine's; --pcie-generation changes it",
                      host.device().links.pcie_generation, joined(unrated)));
  }

  /// Files of clouds contain neither NVLinks nor rates of NICs.
  void assume_nvswitch() {
    const bool bridged = host.device().links.bridged;
    const int links = bridged ? 0 : host.device().links.nvlinks;
    const std::string absent = "NVLinks and rates of NICs are not in the file; ";
    if (links > 0)
      for (const auto& [node, gpu] : gpus) host.parts.join_nvswitch(node, host.nvlinks(links));
    host.imported.assumed.push_back(
        absent +
        (links > 0 ? fmt::format("an NVSwitch joins all {} GPUs by {} links each", gpus.size(), links)
                   : host.device().name +
                         (bridged ? " has NVLink over a bridge to one other, left out" : " has no NVLink")));
  }

  // --- NVLink ---

  [[nodiscard]] int socket_above(const pugi::xml_node& gpu) const {
    pugi::xml_node at = gpu;
    while (!is(at, "cpu")) at = at.parent();
    for (const auto& [node, cpu] : sockets)
      if (cpu == at) return node;
    return sockets.front().first;
  }

  void add_nvlinks(int node, const pugi::xml_node& gpu) {
    int to_switch = 0, to_processor = 0, all = 0;
    for (const pugi::xml_node& nvlink : gpu.children("nvlink")) {
      const int count = integer(nvlink, "count", 1);
      const std::string what = required(nvlink, "tclass");
      all += count;
      if (what.starts_with("0x068000"))
        to_switch += count;
      else if (what.starts_with("0x068001"))
        to_processor += count;
      else if (what.starts_with("0x03"))
        all -= note_peer(node, nvlink, count) ? 0 : count;
      else
        fail(nvlink, "found tclass='{}', expected 0x068000 (NVSwitch), 0x068001 (processor) or 0x0302 (GPU)",
             what);
    }
    if (all > host.device().links.nvlinks)
      fail(gpu, "found {} NVLinks, expected at most the {} of device {}", all, host.device().links.nvlinks,
           host.device().name);
    if (to_switch > 0) host.parts.join_nvswitch(node, host.nvlinks(to_switch));
    if (to_processor > 0) join_processor(node, gpu, host.nvlinks(to_processor));
    if (const pugi::xml_node c2c = gpu.child("c2c"); c2c && to_processor == 0)
      join_processor(
          node, gpu,
          {BytesPerSecond(1e6 * integer(c2c, "bw", 1) * integer(c2c, "count", 1)), kNvLinkLatency});
  }
  /// Adds a link to the processor in addition to PCIe, as on POWER9 and Grace; PCIe's link has the usual
  /// name.
  void join_processor(int node, const pugi::xml_node& gpu, const PartLink& link) {
    host.parts.join(node, socket_above(gpu), link, LinkKind::kNvLink);
    cluster().links.back().name += "-nvlink";
  }

  struct Peers {
    int links = 0;
    pugi::xml_node element;  ///< element that lists them
  };

  /// False for links that lead nowhere.
  bool note_peer(int node, const pugi::xml_node& nvlink, int count) {
    const std::string target = required(nvlink, "target");
    const auto peer = by_bus.find(lower(target));
    if (peer == by_bus.end()) {
      host.imported.ignored.push_back(
          fmt::format("{} has {} NVLinks to {}, which is not in the file; left out",
                      cluster().node_name(node), count, target));
      return true;
    }
    if (peer->second == node) {
      host.imported.ignored.push_back(
          fmt::format("warning: {} has {} NVLinks to itself; left out", cluster().node_name(node), count));
      return false;
    }
    Peers& peers = peers_of_pair[{node, peer->second}];
    peers.links += count;
    peers.element = nvlink;
    return true;
  }

  /// Adds links between GPUs. Each GPU lists its links to the other; both lists must agree.
  void join_peers() {
    for (const auto& [pair, peers] : peers_of_pair) {
      const auto back = peers_of_pair.find({pair.second, pair.first});
      const int links = back == peers_of_pair.end() ? 0 : back->second.links;
      if (links != peers.links)
        fail(peers.element, "found {} links from {} to {}, expected {} as the other way", peers.links,
             cluster().node_name(pair.first), cluster().node_name(pair.second), links);
      if (pair.first < pair.second)
        host.parts.join(pair.first, pair.second, host.nvlinks(links), LinkKind::kNvLink);
    }
  }

  void describe() {
    std::string text =
        "Imported from a topology file of NCCL; cores are the processors in its affinity masks";
    if (rates.size() == 1) text += "; NICs of " + std::to_string(*rates.begin() / 1000) + " Gb/s";
    cluster().description = text + ".";
  }

  pugi::xml_document document{};
  std::vector<std::pair<int, pugi::xml_node>> sockets{};  ///< node, its <cpu>
  std::vector<std::pair<int, pugi::xml_node>> gpus{};     ///< node, its <gpu>
  std::map<std::string, int> by_bus{};                    ///< busid -> node of the GPU
  std::map<std::pair<int, int>, Peers> peers_of_pair{};   ///< from, to
  std::set<int> rates{};                                  ///< of NICs, Mb/s
  std::vector<std::string> virtual_nets{};                ///< interfaces that were left out
  std::set<std::string> unrated{};                        ///< busids of functions without a believable rate
  bool bare = false;                                      ///< the file lists PCI functions alone
  ImportedHost host{file, options};
};

const Registration<Importer> kNcclXml{
    importers(), "nccl-xml", {is_nccl_xml, cluster_importer(read_nccl_xml)}, 10};

}  // namespace

/// True if the first character opens an element.
bool is_nccl_xml(const std::string& text) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  return first != std::string::npos && text[first] == '<' && text.find("<html") == std::string::npos;
}

ImportedCluster read_nccl_xml(const std::string& text, const std::string& file,
                              const ImportOptions& options) {
  return XmlHost{text, file, options}.read();
}

}  // namespace stepcast
