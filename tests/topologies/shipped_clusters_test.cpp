#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <map>

#include "core/file.hpp"
#include "tests/topologies/cluster_files.hpp"
#include "topologies/paths.hpp"

/// Properties of every cluster file in topologies/.
namespace stepcast::shipped_clusters_test {
namespace {

using Catch::Matchers::Contains;

std::ptrdiff_t lines_of(const std::string& cluster) {
  const std::string text = read_file(home_folder() / "topologies" / (cluster + ".yaml"));
  return std::count(text.begin(), text.end(), '\n');
}

/// Bandwidths of the links of one kind, smallest and largest.
struct Range {
  double least = 1e300, most = 0.0;
};

std::map<LinkKind, Range> bandwidths(const Cluster& cluster) {
  std::map<LinkKind, Range> result;
  for (const Link& link : cluster.links) {
    Range& range = result[link.kind];
    range.least = std::min(range.least, link.bandwidth.count());
    range.most = std::max(range.most, link.bandwidth.count());
  }
  return result;
}

TEST_CASE(
    "every shipped cluster loads, has its file's name, says what it is, and routes between neighbours") {
  const std::vector<std::string> names = resource_names("topologies", ".yaml");
  for (const char* expected : {"a100x8", "cpu-4-nodes-1gbe", "h100-fat-tree", "h100-rails", "h100x4-nvlink",
                               "h100x8-hgx", "laptop", "p100x4-pcie", "star"})
    CHECK(std::find(names.begin(), names.end(), expected) != names.end());
  for (const std::string& name : names) {
    INFO(name);
    const Cluster cluster = load_cluster(name);
    CHECK(cluster.name == name);
    CHECK(cluster.description.size() > 20);
    CHECK(cluster.description.ends_with('.'));
    for (const Host& host : cluster.hosts) CHECK(host.cores >= 1);
    const std::vector<int> places = cluster.places();
    const Paths paths(cluster);
    if (places.size() > 1) {
      CHECK_FALSE(paths.between(places.front(), places[1]).empty());
      CHECK_FALSE(paths.between(places.front(), places.back()).empty());
    }
  }
}

TEST_CASE("links of shipped clusters have the order of magnitude of their technology") {
  for (const std::string& name : resource_names("topologies", ".yaml")) {
    INFO(name);
    const Cluster cluster = load_cluster(name);
    const bool virtual_links =
        name.rfind("lab-", 0) == 0;  // slow ones too, and without a latency of their own
    for (const Link& link : cluster.links) {
      INFO(link.name);
      CHECK(link.bandwidth.count() >= (virtual_links ? 10e6 : 100e6));
      CHECK(link.bandwidth.count() <= 2e12);
      CHECK(link.latency.count() >= (virtual_links ? 0.0 : 100e-9));
      CHECK(link.latency.count() <= (virtual_links ? 0.0 : 100e-6));
    }
    const std::map<LinkKind, Range> of = bandwidths(cluster);
    const auto slower = [&of](LinkKind slow, LinkKind fast) {
      return !of.contains(slow) || !of.contains(fast) || of.at(slow).most < of.at(fast).least;
    };
    // Between two GPUs of AMD there is one link, of 48 GB/s, and seven leave each.
    if (name != "mi300x8") CHECK(slower(LinkKind::kPcie, LinkKind::kNvLink));
    CHECK(slower(LinkKind::kSmp, LinkKind::kPcie));
    CHECK(slower(LinkKind::kEthernet, LinkKind::kPcie));
    if (of.contains(LinkKind::kInfiniband))
      CHECK(of.at(LinkKind::kInfiniband).least <= 1.001 * of.at(LinkKind::kPcie).least);
  }
}

TEST_CASE("512 nodes with 4096 GPUs are ten lines of YAML") {
  const Cluster cluster = cluster_files::cluster_of(
      "name: pods\n"
      "include: h100x8-hgx\n"
      "settings: {nodes: 512}\n"
      "network: {kind: fat_tree, protocol: infiniband, rate: rate}\n");
  CHECK(cluster.hosts.size() == 512);
  CHECK(cluster.places().size() == 4096);
  CHECK(lines_of("h100-fat-tree") <= 10);
  CHECK(lines_of("h100-rails") <= 10);
  CHECK(load_cluster("h100-fat-tree:nodes=512").links.size() == cluster.links.size());
}

TEST_CASE("the fat tree of 128 hosts with eight adapters is the full 16-ary one") {
  const Cluster cluster = load_cluster("h100-fat-tree");
  int switches = 0;
  for (const Node& node : cluster.nodes) switches += node.kind == NodeKind::kSwitch ? 1 : 0;
  CHECK(switches == 16 * 16 + 8 * 8);
  CHECK(cluster_files::link_named(cluster, "node127/nic7-edge127").bandwidth.count() == Approx(48e9));
}

TEST_CASE(
    "Grand Teton: a rack of two hosts has a switch, and a pod's bisection carries all of its adapters") {
  const Cluster cluster = load_cluster("grand-teton");
  const Paths paths(cluster);
  const auto hops = [&](int from, int to) {
    return paths
        .between(cluster.hosts[static_cast<std::size_t>(from)].nics[0],
                 cluster.hosts[static_cast<std::size_t>(to)].nics[0])
        .size();
  };
  CHECK(hops(0, 1) == 2);
  CHECK(hops(1, 2) == 4);
  double up = 0.0, down = 0.0;
  for (const Link& link : cluster.links)
    if (link.kind == LinkKind::kInfiniband)
      (link.name.find("spine") != std::string::npos ? up : down) += link.bandwidth.count();
  CHECK(up == Approx(down));
  CHECK(down == Approx(16 * 8 * 48e9));
}

TEST_CASE("DGX A100: hosts of the first edition have 40 GB, and every adapter its own port of 200 Gb/s") {
  const Cluster cluster = load_cluster("dgx-a100:gpu=a100-sxm-40gb");
  REQUIRE(cluster.hosts.size() == 20);
  CHECK(cluster.node(cluster.hosts[19].devices[7]).device == "a100-sxm-40gb");
  int ports = 0;
  for (const Link& link : cluster.links)
    if (link.kind == LinkKind::kInfiniband) {
      CHECK(link.bandwidth.count() == Approx(24e9));
      ports += link.name.find("/nic") != std::string::npos ? 1 : 0;
    }
  CHECK(ports == 160);
}

TEST_CASE("the table of devices is no cluster") {
  const std::string message = cluster_files::complaint_about("devices");
  CHECK_THAT(message, Contains("unknown cluster 'devices'") && Contains("known: a100x8, "));
  CHECK_THAT(message, !Contains("devices,"));
}

}  // namespace
}  // namespace stepcast::shipped_clusters_test
