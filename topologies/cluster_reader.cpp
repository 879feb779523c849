#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <tuple>

#include "core/error.hpp"
#include "core/file.hpp"
#include "core/ranges.hpp"
#include "topologies/disjoint_groups.hpp"
#include "topologies/explicit_parts.hpp"
#include "topologies/host_parts.hpp"
#include "topologies/network.hpp"

namespace stepcast {

namespace fs = std::filesystem;

namespace {

const std::vector<std::string> kClusterKeys{"include",    "name",           "description",  "settings",
                                            "hosts",      "switches",       "links",        "network",
                                            "slow_hosts", "degraded_links", "shared_cores", "storage"};

constexpr const char* kSpeeds = "0.001 to 1000";
constexpr std::size_t kMostNodes = 400'000;  // 16,000 hosts of eight GPUs

/// A cluster file and the files it includes, nearest first. The first file with a key provides it.
class ClusterFile {
 public:
  explicit ClusterFile(const fs::path& path) { add(path); }

  [[nodiscard]] bool has(const std::string& key) const { return file_with({key}).has(key); }
  [[nodiscard]] YamlNode at(const std::string& key) const { return file_with({key}).at(key); }
  /// The nearest file with `network`, or with `switches` and `links`, which belong together.
  [[nodiscard]] const YamlNode& wires() const { return file_with({"network", "links", "switches"}); }
  /// The last files contain the defaults.
  [[nodiscard]] const std::vector<YamlNode>& files() const { return files_; }

 private:
  void add(const fs::path& path) {
    if (!paths_.insert(fs::weakly_canonical(path)).second)
      files_.back().at("include").fail("the file includes itself");
    files_.push_back(YamlNode::load(path.string()));
    const YamlNode file = files_.back().allow_only(kClusterKeys);
    if (!file.has("include")) return;
    add(included(file.at("include"), path.parent_path()));
  }
  /// A shipped cluster, or a path relative to the folder of the including file.
  static fs::path included(const YamlNode& name, const fs::path& folder) {
    const std::string text = name.text();
    const bool is_path = text.find('/') != std::string::npos || text.ends_with(".yaml");
    return name.placed(
        [&] { return find_resource("topologies", is_path ? (folder / text).string() : text, ".yaml"); });
  }
  /// The nearest file with one of the keys, or the first file.
  [[nodiscard]] const YamlNode& file_with(const std::vector<std::string>& keys) const {
    for (const YamlNode& file : files_)
      if (std::ranges::any_of(keys, [&](const std::string& key) { return file.has(key); })) return file;
    return files_.front();
  }

  std::set<fs::path> paths_;
  std::vector<YamlNode> files_;
};

double factor(const YamlNode& node, const ClusterSettings& settings, double least, double most,
              const std::string& range) {
  const double value = settings.value(node).number();
  if (!(value >= least && value <= most)) node.fail("expected a factor from " + range);
  return value;
}

/// Adds a host with the parts of another one. \param node, link its first ones \param nodes, links their
/// number
void repeat_host(Cluster& cluster, const Host& first, const std::string& name, std::size_t node,
                 std::size_t nodes, std::size_t link, std::size_t links) {
  const auto shift = static_cast<int>(cluster.nodes.size() - node);
  const auto renamed = [&](auto part) {
    part.name = name + part.name.substr(first.name.size());
    return part;
  };
  Host host = renamed(first);
  host.node += shift;
  for (std::vector<int>* parts : {&host.devices, &host.nics})
    for (int& part : *parts) part += shift;
  for (std::size_t i = 0; i < nodes; ++i) {
    cluster.nodes.push_back(renamed(cluster.nodes[node + i]));
    cluster.nodes.back().host = static_cast<int>(cluster.hosts.size());
  }
  for (std::size_t i = 0; i < links; ++i) {
    cluster.links.push_back(renamed(cluster.links[link + i]));
    cluster.links.back().a += shift, cluster.links.back().b += shift;
  }
  cluster.hosts.push_back(std::move(host));
}

/// One entry of `hosts`: a host, or `count` equal ones that are numbered from 0.
void read_hosts(const YamlNode& node, const ClusterSettings& settings, Cluster& cluster) {
  std::vector<std::string> keys{"name", "count", "cores", "memory", "speed", "tray"};
  keys.insert(keys.end(), host_part_keys().begin(), host_part_keys().end());
  node.allow_only(keys);
  Host host;
  host.name = node.has("name") ? node.at("name").text() : "host";
  if (node.has("cores")) host.cores = settings.integer(node.at("cores"), 1);
  if (node.has("memory")) host.memory = settings.value(node.at("memory")).bytes();
  if (node.has("tray")) host.tray = settings.integer(node.at("tray"), 1);
  if (node.has("speed")) host.speed = factor(node.at("speed"), settings, 1e-3, 1e3, kSpeeds);
  const bool numbered = node.has("count");
  const int count = numbered ? settings.integer(node.at("count"), 1) : 1;
  const std::size_t before = cluster.nodes.size(), links_before = cluster.links.size();
  const std::string name = host.name;
  if (numbered) host.name += "0";
  const int first = cluster.add_host(std::move(host));
  add_host_parts(node, settings, first, cluster);
  const auto hosts = static_cast<std::size_t>(count);
  const std::size_t parts = cluster.nodes.size() - before, joins = cluster.links.size() - links_before;
  if (before + parts * hosts > kMostNodes)
    node.fail("expected at most {} parts of hosts, found {} hosts of {}", kMostNodes, count, parts);
  cluster.hosts.reserve(cluster.hosts.size() + hosts);
  cluster.nodes.reserve(before + parts * hosts);
  cluster.links.reserve(links_before + joins * hosts);
  for (int i = 1; i < count; ++i)
    repeat_host(cluster, cluster.hosts[first], name + std::to_string(i), before, parts, links_before, joins);
}

/// \param what kind of things, for the message \throws InputError for a repeated name
void expect_own_names(const YamlNode& node, const std::string& what, const auto& all) {
  if (const auto name = repeated_name(all)) node.fail("two {} have the name '{}'", what, *name);
}

void read_network(const YamlNode& file, const ClusterSettings& settings, Cluster& cluster) {
  if (file.has("network")) {
    const YamlNode network = file.at("network");
    if (file.has("links") || file.has("switches"))
      network.fail("cannot be combined with 'links' or 'switches'");
    add_network(network, settings, cluster);
  }
  for (const YamlNode& item : file.items("switches")) cluster.add_node({item.text(), NodeKind::kSwitch});
  if (!file.has("links")) return;
  const YamlNode links = file.at("links");
  expect_own_names(links, "nodes", cluster.nodes);
  std::map<std::string, int> nodes;
  for (const Node& one : cluster.nodes) nodes.emplace(one.name, static_cast<int>(nodes.size()));
  for (const YamlNode& item : links.items()) cluster.links.push_back(read_link(item, settings, nodes, ""));
}

void slow_down(const YamlNode& node, const ClusterSettings& settings, Cluster& cluster) {
  std::map<std::string, Host*> hosts;
  for (Host& host : cluster.hosts) hosts[host.name] = &host;
  std::set<std::string> slowed;
  for (const YamlNode& item : node.items()) {
    item.allow_only({"host", "speed"});
    const double speed = factor(item.at("speed"), settings, 1e-3, 1e3, kSpeeds);
    item.at("host").named("host", hosts)->speed = speed;
    if (!slowed.insert(item.at("host").text()).second)
      item.at("host").fail("found host '{}' twice, expected one speed", item.at("host").text());
  }
}

void degrade(const YamlNode& node, const ClusterSettings& settings, Cluster& cluster) {
  std::map<std::string, Link*> links;
  for (Link& link : cluster.links) links[link.name] = &link;
  std::map<const Link*, std::string> degraded;  // factors as written
  for (const YamlNode& item : node.items()) {
    item.allow_only({"link", "factor"});
    const double left = factor(item.at("factor"), settings, 1e-6, 1.0, "0.000001 to 1");
    Link* link = item.at("link").named("link", links);
    const auto [before, is_new] = degraded.emplace(link, item.at("factor").text());
    if (!is_new)
      item.fail("found factor {} for link '{}', which has factor {} already; expected one factor",
                item.at("factor").text(), link->name, before->second);
    link->bandwidth = link->bandwidth * left;
    link->remaining *= left;
  }
}

Storage read_storage(const YamlNode& node, const ClusterSettings& settings) {
  node.allow_only({"host_rate", "rate", "capacity"});
  Storage storage;
  if (node.has("host_rate")) storage.host_rate = settings.value(node.at("host_rate")).bytes_per_second();
  if (node.has("rate")) storage.rate = settings.value(node.at("rate")).bytes_per_second();
  if (node.has("capacity")) storage.capacity = settings.value(node.at("capacity")).bytes();
  return storage;
}

/// Refuses a second link between two nodes, which paths would ignore. NVLink may be beside PCIe.
void expect_single_links(const YamlNode& node, const Cluster& cluster) {
  std::vector<std::tuple<int, int, bool>> ends;
  ends.reserve(cluster.links.size());
  for (const Link& link : cluster.links)
    ends.emplace_back(std::min(link.a, link.b), std::max(link.a, link.b), link.kind == LinkKind::kNvLink);
  std::ranges::sort(ends);
  if (const auto twice = std::ranges::adjacent_find(ends); twice != ends.end())
    node.fail("two links join '{}' and '{}'; expected one with the bandwidth of both",
              cluster.node_name(std::get<0>(*twice)), cluster.node_name(std::get<1>(*twice)));
}

/// Every link can carry bytes, names are unique, and every place reaches every other.
void check_network(const YamlNode& node, const Cluster& cluster) {
  DisjointGroups groups(cluster.nodes.size());
  expect_own_names(node, "nodes", cluster.nodes);
  expect_own_names(node, "links", cluster.links);
  expect_single_links(node, cluster);
  for (const Link& link : cluster.links) {
    if (!(link.bandwidth.count() > 0.0)) node.fail("link '{}': expected a bandwidth above 0", link.name);
    if (link.queue == Queue::kFifo && cluster.has_devices())
      node.fail("link '{}': queue fifo is that of TCP between hosts without devices; expected fair",
                link.name);
    if (const Link& first = cluster.links.front(); link.queue != first.queue)
      node.fail("link '{}': queue {} beside link '{}' with queue {}; expected the same at all links",
                link.name, to_text(link.queue), first.name, to_text(first.queue));
    groups.join(link.a, link.b);
  }
  const std::vector<int> places = cluster.places();
  const std::string what = cluster.has_devices() ? "device" : "host";
  for (const int place : places)
    if (groups.of(place) != groups.of(places.front()))
      node.fail("no links lead from {0} '{1}' to {0} '{2}'", what, cluster.node_name(places.front()),
                cluster.node_name(place));
}

}  // namespace

int gpus_per_host(const std::string& specification, int otherwise) {
  const auto gpus = static_cast<int>(load_cluster(specification).hosts.front().devices.size());
  return gpus > 0 ? gpus : otherwise;
}

Cluster load_cluster(const std::string& specification) {
  ClusterSettings settings(specification);
  Cluster cluster;
  cluster.specification = specification;
  cluster.path = find_resource("topologies", settings.file(), ".yaml").string();
  const ClusterFile file(cluster.path);
  settings.read_defaults(file.files());
  cluster.name = file.files().front().at("name").text();
  if (file.has("description")) cluster.description = file.at("description").text();
  const YamlNode hosts = file.at("hosts");
  for (const YamlNode& item : hosts.one_or_more()) read_hosts(item, settings, cluster);
  if (cluster.hosts.empty()) hosts.fail("expected at least one host");
  if (file.has("shared_cores")) cluster.shared_cores = settings.integer(file.at("shared_cores"), 1);
  if (file.has("storage")) cluster.storage = read_storage(file.at("storage"), settings);
  read_network(file.wires(), settings, cluster);
  if (file.has("slow_hosts")) slow_down(file.at("slow_hosts"), settings, cluster);
  if (file.has("degraded_links")) degrade(file.at("degraded_links"), settings, cluster);
  check_network(file.files().front(), cluster);
  settings.refuse_unused(file.files().front());
  return cluster;
}

}  // namespace stepcast
