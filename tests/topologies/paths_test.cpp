#include "topologies/paths.hpp"

#include <catch2/catch.hpp>
#include <random>
#include <set>
#include <string>

#include "tests/topologies/cluster_files.hpp"

namespace stepcast::paths_test {
namespace {

using cluster_files::node_named;

std::string text(const Cluster& cluster, const Path& path) {
  std::string result;
  for (const Hop& hop : path) result += cluster.links[static_cast<std::size_t>(hop.link)].name + " ";
  return result;
}

Cluster hosts(int count) {
  Cluster cluster;
  for (int i = 0; i < count; ++i) cluster.add_host({"host" + std::to_string(i), 1, Bytes(0)});
  return cluster;
}

void link(Cluster& cluster, const std::string& name, int a, int b, double bandwidth = 10e9) {
  cluster.links.push_back({name, a, b, BytesPerSecond(bandwidth), Seconds(1e-6)});
}

TEST_CASE("among equal links the path with the fewest is chosen, with its directions") {
  Cluster racks = hosts(4);
  const int left = racks.add_node({"left"});
  const int right = racks.add_node({"right"});
  link(racks, "a", 0, left);
  link(racks, "b", 1, left);
  link(racks, "c", 2, right);
  link(racks, "d", 3, right);
  link(racks, "uplink", left, right);
  const Path path = Paths(racks).between(0, 3);
  CHECK(text(racks, path) == "a uplink d ");
  CHECK(path[0].forward);
  CHECK(path[1].forward);
  CHECK_FALSE(path[2].forward);
  CHECK(latency(racks, path).count() == Approx(3e-6));
  CHECK(text(racks, Paths(racks).between(0, 1)) == "a b ");
  CHECK(Paths(racks).between(2, 2).empty());
}

TEST_CASE("a search by distances finds the path that one from the destination finds") {
  std::mt19937 random(20'261'123);
  std::size_t compared = 0;
  for (const std::string name :
       {"h100-fat-tree:nodes=3", "h100-fat-tree:nodes=20", "h100-fat-tree:nodes=70", "h100-rails:nodes=40",
        "h100-hosts", "cpu-4-nodes-1gbe", "lab-two-racks", "star:hosts=9", "h100x8-pcie"}) {
    const Cluster cluster = load_cluster(name);
    const Paths paths(cluster);
    std::uniform_int_distribution<int> any(0, static_cast<int>(cluster.nodes.size()) - 1);
    for (int draw = 0; draw < 300; ++draw) {
      const int from = any(random);
      const int to = any(random);
      INFO(name << ": " << cluster.node_name(from) << " to " << cluster.node_name(to));
      const Path path = paths.between(from, to, Paths::Search::kOneEnd);
      CHECK(paths.between(from, to) == path);
      compared += cluster.node(from).host != cluster.node(to).host ? 1 : 0;
    }
  }
  CHECK(compared > 1500);
}

TEST_CASE("hosts forward only where there is no other way") {
  Cluster chain = hosts(3);
  link(chain, "x", 0, 1);
  link(chain, "y", 2, 1);
  CHECK(text(chain, Paths(chain).between(0, 2)) == "x y ");
  const int hub = chain.add_node({"hub"});
  const int other = chain.add_node({"other"});
  link(chain, "p", 0, hub, 1e9);
  link(chain, "q", hub, other, 1e9);
  link(chain, "r", other, 2, 1e9);
  CHECK(text(chain, Paths(chain).between(0, 2)) == "p q r ");
}

TEST_CASE("the faster way is taken, though it has more links, and its narrowest link is its bandwidth") {
  Cluster two = hosts(2);
  const int fast = two.add_node({"fast"});
  link(two, "direct", 0, 1, 10e9);
  link(two, "up", 0, fast, 100e9);
  link(two, "down", fast, 1, 50e9);
  const Path path = Paths(two).between(0, 1);
  CHECK(text(two, path) == "up down ");
  CHECK(bandwidth(two, path).count() == Approx(50e9));
}

TEST_CASE("equal paths are spread over by the destination") {
  Cluster fabric = hosts(8);
  const int here = fabric.add_node({"leaf0"});
  const int there = fabric.add_node({"leaf1"});
  for (int host = 0; host < 8; ++host)
    link(fabric, "h" + std::to_string(host), host, host < 4 ? here : there);
  for (int spine = 0; spine < 4; ++spine) {
    const int node = fabric.add_node({"spine" + std::to_string(spine)});
    link(fabric, "up" + std::to_string(spine), here, node);
    link(fabric, "down" + std::to_string(spine), node, there);
  }
  const Paths paths(fabric);
  std::set<int> first;
  for (int host = 4; host < 8; ++host) first.insert(paths.between(0, host)[1].link);
  CHECK(first.size() == 4);
}

TEST_CASE("a path stays out of other hosts, even where the way through one is faster") {
  Cluster cluster = cluster_files::cluster_of(
      "name: t\n"
      "hosts: {count: 3, devices: {model: h100-pcie, count: 1}, nics: {count: 2}}\n"
      "switches: [left, right]\n"
      "links:\n"
      "  - {between: [host0/nic0, left], bandwidth: 10GB/s, latency: 1us}\n"
      "  - {between: [host1/nic0, left], bandwidth: 10GB/s, latency: 1us}\n"
      "  - {between: [host1/nic1, right], bandwidth: 10GB/s, latency: 1us}\n"
      "  - {between: [host2/nic1, right], bandwidth: 10GB/s, latency: 1us}\n"
      "  - {between: [left, right], bandwidth: 1GB/s, latency: 1us}\n");
  const int from = node_named(cluster, "host0/gpu0");
  const int to = node_named(cluster, "host2/gpu0");
  CHECK(bandwidth(cluster, Paths(cluster).between(from, to)).count() == Approx(1e9));
  cluster.links.pop_back();
  CHECK(bandwidth(cluster, Paths(cluster).between(from, to)).count() == Approx(10e9));
}

TEST_CASE("each of two GPUs behind one PCIe switch uses an adapter of its own, at both ends") {
  const Cluster cluster = load_cluster("h100-fat-tree");
  const Paths paths(cluster);
  const std::vector<int> gpus = cluster.places();
  for (std::size_t shift : {8U, 64U, 512U}) {
    std::set<int> first;
    std::set<int> last;
    for (std::size_t gpu = 0; gpu < 8; ++gpu) {
      const Path path = paths.between(gpus[gpu], gpus[gpu + shift]);
      first.insert(path[1].link);
      last.insert(path[path.size() - 2].link);
    }
    CHECK(first.size() == 8);
    CHECK(last.size() == 8);
  }
}

TEST_CASE("GPUs of one host are reached from outside through adapters of their own") {
  const Cluster cluster = load_cluster("h100x8-hgx:nodes=2");
  const std::vector<int> gpus = cluster.places();
  const Paths paths(cluster);
  std::set<int> leaving;
  std::set<int> arriving;
  for (std::size_t gpu = 0; gpu < 8; ++gpu) {
    for (const Hop& hop : paths.between(gpus[gpu], gpus[8 + (gpu + 1) % 8])) {
      const Link& link = cluster.links[static_cast<std::size_t>(hop.link)];
      if (link.kind == LinkKind::kInfiniband) (hop.forward ? leaving : arriving).insert(hop.link);
    }
  }
  CHECK(leaving.size() == 8);
  CHECK(arriving.size() == 8);
}

TEST_CASE("GPUs of one host reach each other over NVLink where there is some, else over PCIe") {
  const Cluster nvlink = load_cluster("h100x4-nvlink");
  const std::vector<int> gpus = nvlink.places();
  REQUIRE(gpus.size() == 4);
  for (const Hop& hop : Paths(nvlink).between(gpus[0], gpus[3]))
    CHECK(nvlink.links[static_cast<std::size_t>(hop.link)].kind == LinkKind::kNvLink);
  const Cluster pcie = load_cluster("p100x4-pcie");
  const std::vector<int> old = pcie.places();
  REQUIRE(old.size() == 4);
  CHECK(Paths(pcie).between(old[0], old[1]).size() == 2);
  CHECK(Paths(pcie).between(old[0], old[3]).size() == 3);
  CHECK(Paths(pcie).between(node_named(pcie, "node/socket0"), old[3]).size() == 2);
}

}  // namespace
}  // namespace stepcast::paths_test
