#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/enum_table.hpp"
#include "core/ranges.hpp"
#include "core/text.hpp"
#include "topologies/disjoint_groups.hpp"
#include "topologies/importer.hpp"

/// The matrix of `nvidia-smi topo -m`, and the host that follows from it.
namespace stepcast {

/// Connection of two parts of a host, in nvidia-smi's terms; those over PCIe in order of distance.
enum class Relation : std::uint8_t {
  kSelf,    ///< X
  kNvLink,  ///< NV#
  kPix,     ///< at most one PCIe switch
  kPxb,     ///< several PCIe switches, not the host bridge
  kPhb,     ///< a host bridge (the processor)
  kNode,    ///< host bridges of one NUMA node
  kSys,     ///< two NUMA nodes; SOC in old drivers
};
inline constexpr auto kRelations = enum_names<Relation>("X", "NV", "PIX", "PXB", "PHB", "NODE", "SYS");
constexpr const char* to_text(Relation relation) { return row_of(kRelations, relation).name; }

struct MatrixCell {
  Relation relation = Relation::kSelf;
  int links = 0;  ///< of NV#
  FilePosition place;
};

struct MatrixPart {
  std::string name;  ///< `GPU0`, `NIC0`, `mlx5_0`
  bool gpu = false;
  std::vector<int> cpus{};  ///< CPU Affinity; empty: unknown
  int numa = -1;            ///< NUMA Affinity; -1: unknown or several
  FilePosition place;       ///< of its row

  [[nodiscard]] bool knows_socket() const { return numa >= 0 || !cpus.empty(); }
  [[nodiscard]] bool same_affinity(const MatrixPart& other) const {
    if (numa >= 0 && other.numa >= 0) return numa == other.numa;
    return !cpus.empty() && cpus == other.cpus;
  }
};

/// Symmetric, with X on its diagonal and at least one GPU.
struct TopologyMatrix {
  std::vector<MatrixPart> parts;
  std::vector<std::vector<MatrixCell>> cells;
  std::vector<std::string> ignored{};  ///< text and rows that were not read: one sentence each

  [[nodiscard]] int size() const { return static_cast<int>(parts.size()); }
  /// All pairs of parts, each in order of their rows.
  [[nodiscard]] std::vector<std::pair<int, int>> pairs() const {
    std::vector<std::pair<int, int>> result;
    for (int a = 0; a < size(); ++a)
      for (int b = a + 1; b < size(); ++b) result.emplace_back(a, b);
    return result;
  }
};

/// Reconstructs the host.
///
/// Sockets are NUMA nodes: parts that are NODE or nearer share one, parts that are SYS do not; if an NV#
/// hides the path over PCIe, the affinity decides. Parts that are PIX share a PCIe switch; such switches and
/// single parts that are PXB share one more; all others are below their socket (PHB and NODE meet in the
/// processor, where nothing is narrower than PCIe). Sockets are joined pairwise.
///
/// GPUs that NV# connect are a domain. Equal NV# between all pairs of a domain are an NVSwitch if a GPU has
/// fewer links than direct ones would need, or if they are 18 and the domain is larger than a pair or the
/// only one; else NV# are direct links. Bandwidths are NCCL's: links x its
/// rate per link of the device, PCIe of 16 lanes. \throws InputError that names file, line and column
struct MatrixHost {
  const TopologyMatrix& matrix;
  const std::string& file;
  const ImportOptions& options;

  ImportedCluster build() {
    const auto first_gpu = std::ranges::find(matrix.parts, true, &MatrixPart::gpu);
    choose_device(first_gpu->place);
    Cluster& cluster = host.imported.cluster;
    cluster.hosts[0].cores = std::max(1, processors());
    add_sockets();
    add_switches();
    add_parts(true);
    add_parts(false);
    add_nvlink();
    host.imported.ignored = matrix.ignored;
    cluster.description =
        std::string("Imported from nvidia-smi topo -m; cores are the processors in its affinities") +
        (cluster.hosts[0].nics.empty() ? "" : "; the rates of the NICs are unknown") + ".";
    return std::move(host.imported);
  }

  /// Parts that reach each other over PCIe within `farthest`.
  [[nodiscard]] DisjointGroups groups_within(Relation farthest) const {
    DisjointGroups groups(matrix.parts.size());
    for (const auto& [a, b] : matrix.pairs()) {
      const Relation relation = matrix.cells[a][b].relation;
      if (relation >= Relation::kPix && relation <= farthest) groups.join(a, b);
    }
    return groups;
  }

  [[nodiscard]] bool on_different_sockets(const DisjointGroups& groups, int a, int b) const {
    for (const int x : groups.members(groups.of(a)))
      for (const int y : groups.members(groups.of(b)))
        if (matrix.cells[x][y].relation == Relation::kSys) return true;
    return false;
  }

  /// Parts of one NUMA node.
  [[nodiscard]] DisjointGroups group_by_socket() const {
    DisjointGroups groups = groups_within(Relation::kNode);
    const auto join_where = [&](const auto& together) {
      for (const auto& [a, b] : matrix.pairs())
        if (groups.of(a) != groups.of(b) && std::invoke(together, matrix.parts[a], matrix.parts[b]) &&
            !on_different_sockets(groups, a, b))
          groups.join(a, b);
    };
    using Part = MatrixPart;
    join_where(&Part::same_affinity);
    join_where([](const Part& a, const Part& b) { return !a.knows_socket() && !b.knows_socket(); });
    join_where([](const Part& a, const Part& b) { return !a.knows_socket() || !b.knows_socket(); });
    return groups;
  }

  /// Known GPUs of NVIDIA with enough NVLinks. NV# of all pairs that need more links than any GPU has are an
  /// NVSwitch's: all links of a GPU. Empty without NVLinks.
  static std::vector<std::string> fitting_devices(int pair, int whole, bool equal) {
    std::vector<std::string> result;
    int most = 0;
    for (const DeviceModel& device : device_models())
      if (device.compute_capability > 0) most = std::max(most, device.links.nvlinks);
    const bool switched = equal && (whole > most || pair == most);
    for (const DeviceModel& device : device_models())
      if (pair > 0 && device.compute_capability > 0 && !(device.links.bridged && whole > pair) &&
          (switched ? device.links.nvlinks == pair : device.links.nvlinks >= whole))
        result.push_back(device.name);
    return result;
  }

  void choose_device(FilePosition place) {
    int pair = 0, whole = 0;
    for (int a = 0; a < matrix.size(); ++a) {
      int sum = 0;
      for (const MatrixCell& cell : matrix.cells[a]) sum += cell.links, pair = std::max(pair, cell.links);
      whole = std::max(whole, sum);
    }
    const std::vector<std::vector<int>> domains = nvlink_domains();
    const bool equal = !domains.empty() && equal_links(domains.front()).has_value();
    constexpr int kLinksOfABridge = 4;
    host.choose_device(fitting_devices(pair, whole, equal),
                       fmt::format("NV{}{}", pair,
                                   pair == kLinksOfABridge && whole == pair
                                       ? " (also of bridges of RTX 3090, A40, A6000 and A100 PCIe)"
                                       : ""),
                       place);
  }
  /// Number of logical processors in the affinities, the only ones known.
  [[nodiscard]] int processors() const {
    std::set<int> cpus;
    for (const MatrixPart& part : matrix.parts) cpus.insert(part.cpus.begin(), part.cpus.end());
    return static_cast<int>(cpus.size());
  }

  /// NUMA number of a group, if a part has one.
  [[nodiscard]] std::optional<int> numa_of(int group) const {
    for (const int part : sockets.members(group))
      if (matrix.parts[part].numa >= 0) return matrix.parts[part].numa;
    return std::nullopt;
  }
  [[nodiscard]] int first_cpu_of(int group) const {
    for (const int part : sockets.members(group))
      if (!matrix.parts[part].cpus.empty()) return matrix.parts[part].cpus.front();
    return std::numeric_limits<int>::max();
  }

  /// Sockets by number: that of the NUMA node, or the lowest free one, in the order of their processors.
  [[nodiscard]] std::map<int, int> number_sockets() const {
    std::map<int, int> group_of_number;
    std::vector<int> unnumbered;
    for (const int group : sockets.all()) {
      const std::optional<int> numa = numa_of(group);
      if (!numa || !group_of_number.emplace(*numa, group).second) unnumbered.push_back(group);
    }
    std::ranges::stable_sort(unnumbered, {}, [&](int group) { return first_cpu_of(group); });
    for (const int group : unnumbered) group_of_number.emplace(lowest_free(group_of_number), group);
    return group_of_number;
  }

  void add_sockets() {
    for (const auto& [socket, group] : host.add_sockets(number_sockets(), std::nullopt))
      for (const int part : sockets.members(group)) above[part] = socket;
  }

  int add_switch(const std::vector<int>& parts, int over) {
    const int node = host.parts.add_bridge(over, host.pcie());
    for (const int part : parts) above[part] = node;
    return node;
  }

  /// Adds a switch per PIX group, and one above if several groups or parts are PXB.
  void add_switches() {
    const DisjointGroups single = groups_within(Relation::kPix), several = groups_within(Relation::kPxb);
    for (const int group : several.all()) {
      const std::vector<int> parts = several.members(group);
      if (parts.size() < 2) continue;
      const int upper = add_switch(parts, above[group]);
      for (const int part : parts) {
        const std::vector<int> below = single.members(part);
        if (below.size() >= 2 && below.size() < parts.size()) add_switch(below, upper);
      }
    }
    for (const auto& [a, b] : matrix.pairs()) note_contradiction(a, b, single, several);
  }

  /// Notes two parts that are far from each other but both near a third; they count as near.
  void note_contradiction(int a, int b, const DisjointGroups& single, const DisjointGroups& several) {
    const MatrixCell& cell = matrix.cells[a][b];
    const Relation built = single.of(a) == single.of(b)     ? Relation::kPix
                           : several.of(a) == several.of(b) ? Relation::kPxb
                           : sockets.of(a) == sockets.of(b) ? Relation::kNode
                                                            : Relation::kSys;
    if (cell.relation < Relation::kPix || cell.relation <= built) return;
    host.imported.assumed.push_back(fmt::format(
        "{}{} and {} are {}, but both are near a third part; assumed to be {}", at_place(file, cell.place),
        matrix.parts[a].name, matrix.parts[b].name, to_text(cell.relation), to_text(built)));
  }

  void add_parts(bool gpus) {
    for (int i = 0; i < matrix.size(); ++i) {
      const MatrixPart& part = matrix.parts[i];
      if (part.gpu != gpus) continue;
      const std::string name = gpus || part.name.starts_with("NIC") ? lower(part.name) : part.name;
      part_node[i] = host.parts.add_below(above[i], name, gpus ? NodeKind::kDevice : NodeKind::kNic,
                                          host.pcie(), gpus ? host.device().name : "");
    }
  }

  /// Groups of two or more GPUs that NV# connect.
  [[nodiscard]] std::vector<std::vector<int>> nvlink_domains() const {
    DisjointGroups groups(matrix.parts.size());
    for (const auto& [a, b] : matrix.pairs())
      if (matrix.cells[a][b].links > 0) groups.join(a, b);
    auto domains = transformed(groups.all(), [&](int group) { return groups.members(group); });
    std::erase_if(domains, [](const std::vector<int>& members) { return members.size() < 2; });
    return domains;
  }
  /// Number of NVLinks of every pair, if it is the same for all.
  [[nodiscard]] std::optional<int> equal_links(const std::vector<int>& domain) const {
    const int links = matrix.cells[domain[0]][domain[1]].links;
    for (const int a : domain)
      for (const int b : domain)
        if (a != b && matrix.cells[a][b].links != links) return std::nullopt;
    return links;
  }

  void check_links() const {
    for (const auto& row : matrix.cells)
      for (const MatrixCell& cell : row)
        if (cell.links > host.device().links.nvlinks)
          fail_at(file, cell.place, "found 'NV{}', expected at most the {} NVLinks of device {}", cell.links,
                  host.device().links.nvlinks, host.device().name);
  }

  void add_nvlink() {
    check_links();
    const std::vector<std::vector<int>> domains = nvlink_domains();
    std::set<int> connected;
    for (const auto [i, domain] : enumerated(domains)) {
      connected.insert(domain.begin(), domain.end());
      if (host.device().links.bridged && domain.size() > 2)
        fail_at(file, matrix.parts[domain.front()].place,
                "found NVLinks between {} GPUs, device {} has a bridge to one", domain.size(),
                host.device().name);
      constexpr int kMoreThanABridge = 18;
      const std::optional<int> equal = equal_links(domain);
      const bool large = domain.size() > 2 || domains.size() == 1;
      const int others = static_cast<int>(domain.size()) - 1;
      if (equal && (*equal * others > host.device().links.nvlinks || (large && *equal >= kMoreThanABridge)))
        for (const int gpu : domain)
          host.parts.join_nvswitch(part_node[gpu], host.nvlinks(*equal), static_cast<int>(i));
      else
        add_direct_links(domain);
    }
    for (int i = 0; i < matrix.size(); ++i)
      if (matrix.parts[i].gpu && !connected.empty() && !connected.contains(i))
        host.imported.assumed.push_back("warning: " + matrix.parts[i].name +
                                        " has no NVLink, although other GPUs have; it is reached over PCIe");
  }

  void add_direct_links(const std::vector<int>& domain) {
    for (const int a : domain) {
      int sum = 0;
      for (const int b : domain) {
        const int links = matrix.cells[a][b].links;
        sum += links;
        if (b > a && links > 0)
          host.parts.join(part_node[a], part_node[b], host.nvlinks(links), LinkKind::kNvLink);
      }
      if (sum > host.device().links.nvlinks)
        fail_at(file, matrix.parts[a].place,
                "found {} NVLinks of {} in all, expected at most the {} of device {}, or equal NV# between "
                "all GPUs, as with NVSwitches",
                sum, matrix.parts[a].name, host.device().links.nvlinks, host.device().name);
    }
  }

  const DisjointGroups sockets = group_by_socket();
  /// By part; `above`: its socket or PCIe switch, so far.
  std::vector<int> part_node = std::vector<int>(matrix.parts.size(), -1), above = part_node;
  ImportedHost host{file, options};
};

}  // namespace stepcast
