#include "topologies/topology_matrix.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <set>

#include "topologies/host_parts.hpp"

namespace stepcast {
namespace {

/// Parts that belong together; a group's number is its first part.
class Groups {
 public:
  explicit Groups(int parts) : first_(static_cast<std::size_t>(parts)) {
    std::iota(first_.begin(), first_.end(), 0);
  }
  [[nodiscard]] int of(int part) const { return first_[static_cast<std::size_t>(part)]; }
  void join(int a, int b) {
    const int kept = std::min(of(a), of(b));
    const int gone = std::max(of(a), of(b));
    std::replace(first_.begin(), first_.end(), gone, kept);
  }
  [[nodiscard]] std::vector<int> members(int group) const {
    std::vector<int> result;
    for (std::size_t i = 0; i < first_.size(); ++i)
      if (first_[i] == group) result.push_back(static_cast<int>(i));
    return result;
  }
  /// In the order of their first parts.
  [[nodiscard]] std::vector<int> all() const {
    const std::set<int> unique(first_.begin(), first_.end());
    return {unique.begin(), unique.end()};
  }

 private:
  std::vector<int> first_;
};

/// Parts that reach each other over PCIe within `farthest`.
Groups groups_within(const TopologyMatrix& matrix, Relation farthest) {
  Groups groups(matrix.size());
  for (int a = 0; a < matrix.size(); ++a)
    for (int b = a + 1; b < matrix.size(); ++b) {
      const Relation relation = matrix.cell(a, b).relation;
      if (relation >= Relation::kPix && relation <= farthest) groups.join(a, b);
    }
  return groups;
}

bool apart(const TopologyMatrix& matrix, const Groups& groups, int a, int b) {
  for (const int x : groups.members(groups.of(a)))
    for (const int y : groups.members(groups.of(b)))
      if (matrix.cell(x, y).relation == Relation::kSys) return true;
  return false;
}

bool knows_socket(const MatrixPart& part) { return part.numa >= 0 || !part.cpus.empty(); }

bool same_affinity(const MatrixPart& a, const MatrixPart& b) {
  if (a.numa >= 0 && b.numa >= 0) return a.numa == b.numa;
  return !a.cpus.empty() && a.cpus == b.cpus;
}

/// Parts of one NUMA node.
Groups group_by_socket(const TopologyMatrix& matrix) {
  Groups groups = groups_within(matrix, Relation::kNode);
  const auto join_where = [&](const auto& together) {
    for (int a = 0; a < matrix.size(); ++a)
      for (int b = a + 1; b < matrix.size(); ++b)
        if (groups.of(a) != groups.of(b) && together(matrix.part(a), matrix.part(b)) &&
            !apart(matrix, groups, a, b))
          groups.join(a, b);
  };
  join_where(same_affinity);
  join_where([](const MatrixPart& a, const MatrixPart& b) { return !knows_socket(a) && !knows_socket(b); });
  join_where([](const MatrixPart& a, const MatrixPart& b) { return !knows_socket(a) || !knows_socket(b); });
  return groups;
}

/// What tells the GPU, where nobody says: the NVLinks of a pair and of a whole GPU. HGX boards of four H100
/// and A100 spend all 18 and 12 links on three peers; NV6 otherwise is DGX-2. "" when nothing tells.
std::string guess_device(const TopologyMatrix& matrix) {
  int pair = 0;
  int whole = 0;
  for (int a = 0; a < matrix.size(); ++a) {
    int sum = 0;
    for (int b = 0; b < matrix.size(); ++b) sum += matrix.cell(a, b).links;
    for (int b = 0; b < matrix.size(); ++b) pair = std::max(pair, matrix.cell(a, b).links);
    whole = std::max(whole, sum);
  }
  if (pair == 18 || (pair == 6 && whole == 18)) return "h100-sxm";
  if (pair == 12 || pair == 4) return "a100-sxm";
  if ((pair >= 1 && pair <= 3) || pair == 6) return "v100-sxm";
  return pair == 0 && matrix.old_words ? "p100-pcie-12gb" : "";
}

class MatrixHost {
 public:
  MatrixHost(const TopologyMatrix& matrix, const std::string& file, const ImportOptions& options)
      : matrix_(matrix),
        file_(file),
        options_(options),
        device_(imported_device(options, guess_device(matrix), file, matrix.part(first_gpu()).place)),
        sockets_(group_by_socket(matrix)),
        node_(matrix.parts.size(), -1) {}

  Imported build() {
    Host host;
    host.name = "node";
    host.cores = std::max(1, processors());
    imported_.cluster.add_host(host);
    add_sockets();
    add_switches();
    add_parts(true);
    add_parts(false);
    add_nvlink();
    if (options_.device.empty())
      imported_.notes.push_back("the GPUs are taken for " + device_.name + ", " + reason() +
                                "; --device says otherwise");
    imported_.cluster.description =
        "Imported from nvidia-smi topo -m; cores are the processors that its affinities name";
    if (!imported_.cluster.hosts[0].nics.empty())
      imported_.cluster.description += "; it does not tell the rates of the NICs";
    imported_.cluster.description += ".";
    return std::move(imported_);
  }

 private:
  [[nodiscard]] int first_gpu() const {
    int part = 0;
    while (!matrix_.part(part).gpu) ++part;
    return part;
  }
  [[nodiscard]] std::string reason() const {
    int most = 0;
    for (const auto& row : matrix_.cells)
      for (const MatrixCell& cell : row) most = std::max(most, cell.links);
    if (most > 0) return "because of NV" + std::to_string(most);
    return "because SOC was a word of drivers of that time";
  }
  /// Logical processors that the affinities name: all that is known of the host's.
  [[nodiscard]] int processors() const {
    std::set<int> cpus;
    for (const MatrixPart& part : matrix_.parts) cpus.insert(part.cpus.begin(), part.cpus.end());
    return static_cast<int>(cpus.size());
  }

  /// The NUMA number of a group, where its parts tell one.
  [[nodiscard]] std::optional<int> numa_of(int group) const {
    for (const int part : sockets_.members(group))
      if (matrix_.part(part).numa >= 0) return matrix_.part(part).numa;
    return std::nullopt;
  }
  [[nodiscard]] int first_cpu_of(int group) const {
    for (const int part : sockets_.members(group))
      if (!matrix_.part(part).cpus.empty()) return matrix_.part(part).cpus.front();
    return std::numeric_limits<int>::max();
  }

  /// Sockets by number: the NUMA node's, or the lowest that is free, in the order of their processors.
  [[nodiscard]] std::map<int, int> number_sockets() const {
    std::map<int, int> group_of_number;
    std::vector<int> unnumbered;
    for (const int group : sockets_.all()) {
      const std::optional<int> numa = numa_of(group);
      if (!numa || !group_of_number.emplace(*numa, group).second) unnumbered.push_back(group);
    }
    std::stable_sort(unnumbered.begin(), unnumbered.end(),
                     [&](int a, int b) { return first_cpu_of(a) < first_cpu_of(b); });
    for (const int group : unnumbered) group_of_number.emplace(lowest_free(group_of_number), group);
    return group_of_number;
  }

  void add_sockets() {
    std::vector<int> numbers;
    std::vector<int> groups;
    for (const auto& [number, group] : number_sockets()) {
      numbers.push_back(number);
      groups.push_back(group);
    }
    const std::vector<int> nodes = add_imported_sockets(imported_, numbers, options_, device_, std::nullopt);
    for (std::size_t i = 0; i < nodes.size(); ++i) socket_of_group_[groups[i]] = nodes[i];
  }

  void join(int a, int b, BytesPerSecond bandwidth, Seconds latency, LinkKind kind) {
    join_parts(imported_.cluster, a, b, {"", a, b, bandwidth, latency, kind});
  }
  void join_pcie(int below, int above) {
    const int generation = imported_pcie_generation(options_, device_);
    join(below, above, pcie_bandwidth(generation, 16), kPcieLatency, LinkKind::kPcie);
  }
  [[nodiscard]] int socket_of(int part) const { return socket_of_group_.at(sockets_.of(part)); }

  int add_switch(const std::vector<int>& parts, int above) {
    const int node =
        add_part(imported_.cluster, 0, "pcie" + std::to_string(switches_++), NodeKind::kPcieSwitch);
    join_pcie(node, above);
    for (const int part : parts) above_[part] = node;
    return node;
  }

  /// A switch per PIX group; one above them where several groups or parts are PXB.
  void add_switches() {
    const Groups single = groups_within(matrix_, Relation::kPix);
    const Groups several = groups_within(matrix_, Relation::kPxb);
    for (const int group : several.all()) {
      const std::vector<int> parts = several.members(group);
      if (parts.size() < 2) continue;
      const int upper = add_switch(parts, socket_of(group));
      for (const int part : parts) {
        const std::vector<int> below = single.members(part);
        if (below.size() >= 2 && below.size() < parts.size()) add_switch(below, upper);
      }
    }
    for (int a = 0; a < matrix_.size(); ++a)
      for (int b = a + 1; b < matrix_.size(); ++b) note_contradiction(a, b, single, several);
  }

  /// A matrix may say that two parts are far from each other and both near a third; then they are near.
  void note_contradiction(int a, int b, const Groups& single, const Groups& several) {
    const MatrixCell& cell = matrix_.cell(a, b);
    Relation built = Relation::kSys;
    if (single.of(a) == single.of(b))
      built = Relation::kPix;
    else if (several.of(a) == several.of(b))
      built = Relation::kPxb;
    else if (sockets_.of(a) == sockets_.of(b))
      built = Relation::kNode;
    if (cell.relation < Relation::kPix || cell.relation <= built) return;
    imported_.notes.push_back(file_ + ":" + std::to_string(cell.place.line) + ":" +
                              std::to_string(cell.place.column) + ": " + matrix_.part(a).name + " and " +
                              matrix_.part(b).name + " are " + to_text(cell.relation) +
                              ", but both are near a third part; taken for " + to_text(built));
  }

  void add_parts(bool gpus) {
    for (int i = 0; i < matrix_.size(); ++i) {
      const MatrixPart& part = matrix_.part(i);
      if (part.gpu != gpus) continue;
      const std::string name = gpus || part.name.starts_with("NIC") ? lower(part.name) : part.name;
      int& node = node_[static_cast<std::size_t>(i)];
      node = add_part(imported_.cluster, 0, name, gpus ? NodeKind::kDevice : NodeKind::kNic,
                      gpus ? device_.name : "");
      const auto above = above_.find(i);
      join_pcie(node, above == above_.end() ? socket_of(i) : above->second);
    }
  }

  /// How many NVLinks every pair has, when all have as many; else nothing.
  [[nodiscard]] std::optional<int> equal_links() const {
    std::optional<int> links;
    for (int a = 0; a < matrix_.size(); ++a)
      for (int b = a + 1; b < matrix_.size(); ++b) {
        if (!matrix_.part(a).gpu || !matrix_.part(b).gpu) continue;
        if (links && *links != matrix_.cell(a, b).links) return std::nullopt;
        links = matrix_.cell(a, b).links;
      }
    return links && *links > 0 ? links : std::nullopt;
  }

  void check_links() const {
    for (const auto& row : matrix_.cells)
      for (const MatrixCell& cell : row)
        if (cell.links > device_.nvlinks)
          fail_at(file_, cell.place,
                  "found 'NV" + std::to_string(cell.links) + "', expected at most the " +
                      std::to_string(device_.nvlinks) + " NVLinks of device " + device_.name);
  }

  void add_nvlink() {
    check_links();
    Cluster& cluster = imported_.cluster;
    constexpr int kMoreThanABridge = 18;
    const std::optional<int> equal = equal_links();
    const auto others = static_cast<int>(cluster.hosts[0].devices.size()) - 1;
    if (equal && (*equal * others > device_.nvlinks || *equal >= kMoreThanABridge)) {
      const int hub = add_part(cluster, 0, "nvswitch", NodeKind::kNvSwitch);
      for (const int gpu : cluster.hosts[0].devices) join_nvlink(gpu, hub, *equal);
      return;
    }
    for (int a = 0; a < matrix_.size(); ++a) {
      int sum = 0;
      for (int b = 0; b < matrix_.size(); ++b) {
        const int links = matrix_.cell(a, b).links;
        sum += links;
        if (b > a && links > 0)
          join_nvlink(node_[static_cast<std::size_t>(a)], node_[static_cast<std::size_t>(b)], links);
      }
      if (sum > device_.nvlinks)
        fail_at(file_, matrix_.part(a).place,
                "found " + std::to_string(sum) + " NVLinks of " + matrix_.part(a).name +
                    " in all, expected at most the " + std::to_string(device_.nvlinks) + " of device " +
                    device_.name + ", or NV# alike between all GPUs, as with NVSwitches");
    }
  }
  void join_nvlink(int a, int b, int links) {
    join(a, b, static_cast<double>(links) * device_.nvlink_bandwidth, kNvLinkLatency, LinkKind::kNvLink);
  }

  const TopologyMatrix& matrix_;
  const std::string& file_;
  const ImportOptions& options_;
  const DeviceModel& device_;
  const Groups sockets_;
  std::vector<int> node_;               ///< by part
  std::map<int, int> socket_of_group_;  ///< node
  std::map<int, int> above_;            ///< part -> PCIe switch
  int switches_ = 0;
  Imported imported_;
};

}  // namespace

const char* to_text(Relation relation) {
  switch (relation) {
    case Relation::kSelf:
      return "X";
    case Relation::kNvLink:
      return "NV";
    case Relation::kPix:
      return "PIX";
    case Relation::kPxb:
      return "PXB";
    case Relation::kPhb:
      return "PHB";
    case Relation::kNode:
      return "NODE";
    case Relation::kSys:
      return "SYS";
  }
  return "";
}

Imported host_of_matrix(const TopologyMatrix& matrix, const std::string& file, const ImportOptions& options) {
  return MatrixHost(matrix, file, options).build();
}

}  // namespace stepcast
