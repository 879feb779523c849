#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "tests/topologies/imported.hpp"
#include "tests/worlds.hpp"
#include "topologies/cluster_text.hpp"

namespace stepcast::tests::writer_test {
using namespace worlds;
namespace {

using Catch::Matchers::Contains;

/// A file that is removed again.
struct TemporaryCluster {
  explicit TemporaryCluster(const std::string& text) { std::ofstream(path) << text; }
  ~TemporaryCluster() { std::filesystem::remove(path); }
  TemporaryCluster(const TemporaryCluster&) = delete;
  TemporaryCluster& operator=(const TemporaryCluster&) = delete;
  std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("stepcast_writer_" + std::to_string(::getpid()) + ".yaml");
};

Cluster loaded(const std::string& text) { return load_cluster(TemporaryCluster(text).path.string()); }

std::string message_of(const std::string& text) {
  return error_of([&] { return loaded(text); });
}

void check_equal(const Cluster& a, const Cluster& b) {
  CHECK(a.name == b.name);
  CHECK(a.description == b.description);
  CHECK(a.shared_cores == b.shared_cores);
  CHECK(a.storage == b.storage);
  REQUIRE(a.hosts.size() == b.hosts.size());
  for (std::size_t i = 0; i < a.hosts.size(); ++i) {
    const Host& x = a.hosts[i];
    const Host& y = b.hosts[i];
    CHECK(std::tie(x.name, x.cores, x.memory, x.speed, x.node, x.devices, x.nics) ==
          std::tie(y.name, y.cores, y.memory, y.speed, y.node, y.devices, y.nics));
  }
  REQUIRE(a.nodes.size() == b.nodes.size());
  for (std::size_t i = 0; i < a.nodes.size(); ++i) {
    const Node& x = a.nodes[i];
    const Node& y = b.nodes[i];
    CHECK(std::tie(x.name, x.kind, x.host, x.device) == std::tie(y.name, y.kind, y.host, y.device));
  }
  REQUIRE(a.links.size() == b.links.size());
  for (std::size_t i = 0; i < a.links.size(); ++i) {
    const Link& x = a.links[i];
    const Link& y = b.links[i];
    CHECK(std::tie(x.name, x.a, x.b, x.bandwidth, x.latency, x.kind, x.remaining, x.queue, x.token_bucket) ==
          std::tie(y.name, y.a, y.b, y.bandwidth, y.latency, y.kind, y.remaining, y.queue, y.token_bucket));
  }
}

TEST_CASE("every shipped cluster that is written is read back as it was, digit by digit") {
  const std::vector<std::string> shipped = resource_names("topologies", ".yaml");
  REQUIRE(shipped.size() >= 6);
  for (const std::string& name : shipped) {
    INFO(name);
    const Cluster cluster = load_cluster(name);
    check_equal(loaded(to_yaml(cluster)), cluster);
  }
  const Cluster many = load_cluster("h100x8-hgx:nodes=12,rate=200Gb/s");
  check_equal(loaded(to_yaml(many)), many);
}

TEST_CASE("every imported host that is written is read back as it was") {
  for (const std::string& name : reference_names()) {
    INFO(name);
    const Cluster cluster = import_reference(name).cluster;
    check_equal(loaded(to_yaml(cluster)), cluster);
  }
}

TEST_CASE("stragglers, degraded links, ports, names that need quotes and odd rates are read back") {
  const Cluster cluster = loaded(
      "name: \"two: \\\"odd\\\" [hosts]\"\n"
      "description: \"a: b # c\"\n"
      "hosts: [{name: \"7 up\", count: 3, memory: 3GiB}, {name: \"null\", cores: 3, speed: 0.1}]\n"
      "shared_cores: 2\n"
      "network: {kind: star, bandwidth: 123456789.123B/s, latency: 333ns, queue: fifo, token_bucket: "
      "70001B}\n"
      "slow_hosts: [{host: 7 up1, speed: 0.7}]\n"
      "degraded_links: [{link: 7 up2-switch, factor: 0.3}]\n");
  check_equal(loaded(to_yaml(cluster)), cluster);
}

TEST_CASE("a degraded link is written whole with what is left of it, so that routes stay as they were") {
  const std::string fabric =
      "name: fabric\n"
      "hosts: {name: n, count: 8, devices: {model: h100-sxm, count: 2}, nvlink: {switch: true}, nics: "
      "{count: 1}}\n"
      "network: {kind: leaf_spine, ports_per_leaf: 4, spines: 2, protocol: infiniband, rate: 400Gb/s}\n";
  for (const std::string factor : {"0.1", "0.25", "0.3", "0.7", "0.77", "0.999", "1"}) {
    INFO(factor);
    std::string degraded = fabric;
    degraded.append("degraded_links: [{link: leaf0-spine1, factor: ")
        .append(factor)
        .append("}, {link: n3/gpu1-nvswitch, factor: ")
        .append(factor)
        .append("}]\n");
    const Cluster cluster = loaded(degraded);
    const std::string text = to_yaml(cluster);
    CHECK_THAT(text,
               Contains("{between: [leaf0, spine1], kind: infiniband, bandwidth: 96GB/s, latency: 0.5us}"));
    CHECK_THAT(text, Contains("  - name: n\n    count: 8\n"));
    const Cluster again = loaded(text);
    check_equal(again, cluster);
    const Paths before(cluster);
    const Paths after(again);
    for (const int from : cluster.places())
      for (const int to : cluster.places()) CHECK(after.between(from, to) == before.between(from, to));
  }
}

TEST_CASE("equal hosts are one entry, and an imported host becomes sixteen by a count and a network") {
  const std::string many = to_yaml(load_cluster("h100x8-hgx:nodes=16"));
  CHECK_THAT(many, Contains("  - name: node\n    count: 16\n") && !Contains("node1\n"));
  std::string text = to_yaml(import_reference("hopper-nvswitch.txt").cluster);
  text = replaced(text, "  - name: node\n", "  - name: node\n    count: 16\n") +
         "network: {kind: star, protocol: infiniband, rate: 400Gb/s}\n";
  const Cluster cluster = loaded(text);
  CHECK(cluster.hosts.size() == 16);
  CHECK(cluster.places().size() == 96);
  CHECK(cluster.node_name(cluster.hosts[15].devices[5]) == "node15/gpu5");
  CHECK(Paths(cluster).between(cluster.hosts[0].devices[0], cluster.hosts[15].devices[5]).size() > 3);
}

TEST_CASE("mistakes in a host whose parts are listed are named with their place") {
  const std::string head = "name: t\nhosts:\n  - name: a\n    nodes:\n      - {name: s, kind: socket}\n";
  CHECK(message_of(head).empty());
  CHECK_THAT(message_of(head + "      - {name: g, kind: devise}\n"),
             Contains(":6:") && Contains("did you mean 'device'"));
  CHECK_THAT(message_of(head + "      - {name: g, kind: device, device: h100-smx}\n"), Contains("h100-sxm"));
  CHECK_THAT(message_of(head + "      - {name: g, kind: nic, device: h100-sxm}\n"),
             Contains("only a node of the kind"));
  CHECK_THAT(message_of(head + "      - {name: s, kind: nic}\n"), Contains("'s'"));
  CHECK_THAT(message_of(head + "    pcie: {switches: 1}\n"), Contains("cannot be combined with 'nodes'"));
  CHECK_THAT(message_of(head + "    links: [{between: [s, t], bandwidth: 1GB/s, latency: 0}]\n"),
             Contains("'t'"));
  CHECK_THAT(message_of(head + "    links: [{between: [s, s], bandwidth: 1GB/s, latency: 0}]\n"),
             Contains("different"));
  CHECK_THAT(
      message_of(head + "      - {name: n, kind: nic}\n    links: [{between: [s, n], kind: pci, bandwidth: "
                        "1GB/s, latency: 0}]\n"),
      Contains("did you mean 'pcie'"));
  CHECK_THAT(message_of("name: t\nhosts:\n  - name: a\n    nodes: [{name: n, kind: nic}]\n"),
             Contains("to be a socket"));
  CHECK_THAT(message_of("name: t\nhosts: {nodes: []}\n"), Contains("at least one socket"));
}

}  // namespace
}  // namespace stepcast::tests::writer_test
