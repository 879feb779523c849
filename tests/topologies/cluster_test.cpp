#include "topologies/cluster.hpp"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "tests/topologies/cluster_files.hpp"

namespace stepcast::cluster_test {
namespace {

using Catch::Matchers::Contains;
using cluster_files::cluster_of;
using cluster_files::message_of;

TEST_CASE("the laptop is one host with two cores and no links") {
  const Cluster cluster = load_cluster("laptop");
  REQUIRE(cluster.hosts.size() == 1);
  CHECK(cluster.hosts[0].cores == 2);
  CHECK(cluster.links.empty());
}

TEST_CASE("the star has 64 hosts at 50 GB/s and 500 ns unless set otherwise") {
  const Cluster cluster = load_cluster("star");
  CHECK(cluster.hosts.size() == 64);
  CHECK(cluster.nodes.size() == 65);
  CHECK(cluster.nodes[64].kind == NodeKind::kSwitch);
  REQUIRE(cluster.links.size() == 64);
  CHECK(cluster.links[7].bandwidth.count() == Approx(50e9));
  CHECK(cluster.links[7].latency.count() == Approx(500e-9));
  CHECK(cluster.node_name(cluster.links[7].a) == "host7");
  CHECK(cluster.node_name(cluster.links[7].b) == "switch");
  const Cluster other = load_cluster("star:hosts=3,latency=2us");
  CHECK(other.hosts.size() == 3);
  CHECK(other.links[0].latency.count() == Approx(2e-6));
  CHECK(other.specification == "star:hosts=3,latency=2us");
}

TEST_CASE("hosts, switches and links can be listed one by one") {
  const Cluster cluster = cluster_of(
      "name: office\n"
      "settings: {speed: 1GB/s}\n"
      "hosts:\n"
      "  - {name: fast, cores: 8, memory: 32GB}\n"
      "  - {name: slow, count: 2, speed: 0.5}\n"
      "switches: [rack]\n"
      "links:\n"
      "  - {between: [fast, rack], bandwidth: speed, latency: 20us}\n"
      "  - {between: [slow0, rack], bandwidth: speed, latency: 20us}\n"
      "  - {between: [slow1, rack], bandwidth: 10MB/s, latency: 20us}\n",
      ":speed=2GB/s");
  REQUIRE(cluster.hosts.size() == 3);
  CHECK(cluster.hosts[0].memory.count() == Approx(32e9));
  CHECK(cluster.hosts[2].name == "slow1");
  CHECK(cluster.hosts[2].speed == 0.5);
  CHECK(cluster.links[0].bandwidth.count() == Approx(2e9));
  CHECK(cluster.links[2].bandwidth.count() == Approx(10e6));
}

TEST_CASE("mistakes in a cluster file are named with their place and the nearest right word") {
  CHECK_THAT(message_of("name: t\nhosts: {cout: 2}\n"),
             Contains(":2") && Contains("cout") && Contains("count"));
  CHECK_THAT(message_of("name: t\nhosts: [{name: a}, {name: a}]\nnetwork: {kind: star, bandwidth: 1GB/s, "
                        "latency: 0}\n"),
             Contains("'a'"));
  CHECK_THAT(message_of("name: t\nhosts: {count: 0}\n"), Contains("at least 1"));
  CHECK_THAT(message_of("name: t\nhosts: {count: 2}\n"),
             Contains("no links lead from host 'host0' to host 'host1'"));
  CHECK_THAT(message_of("name: t\nhosts: {}\nnetwork: {kind: stra, bandwidth: 1GB/s, latency: 1us}\n"),
             Contains("stra") && Contains("did you mean 'star'"));
  CHECK_THAT(message_of("name: t\nhosts: {}\nnetwork: {kind: star, bandwidth: 1, latency: 1us}\n"),
             Contains("network.bandwidth"));
  CHECK_THAT(message_of("name: t\nhosts: {}\nswitches: [s]\nlinks: [{between: [host, sw], bandwidth: 1GB/s, "
                        "latency: 1us}]\n"),
             Contains("'sw'"));
  CHECK_THAT(message_of("name: t\nsettings: {hosts: 2}\nhosts: {count: hosts}\n", ":host=3"),
             Contains("host") && Contains("did you mean 'hosts'"));
  CHECK_THAT(message_of("name: t\nhosts: {}\n", ":hosts"), Contains("no such file"));
  CHECK_THAT(message_of("name: t\nhosts: {count: 2000000}\n"),
             Contains(":2: hosts.count: expected at most 1000000"));
  CHECK_THAT(
      message_of(
          "name: t\nhosts: {count: 2}\nlinks:\n  - {between: [host0, host1], bandwidth: 1GB/s, latency: "
          "1us}\n  - {between: [host0, host1], bandwidth: 1GB/s, latency: 1us}\n"),
      Contains("two links have the name 'host0-host1'"));
  CHECK_THROWS_AS(load_cluster("satr"), InputError);
}

TEST_CASE(
    "how ports serve flows, what passes a shaped link at once and who shares a machine is said in the file") {
  const std::string star = "network: {kind: star, bandwidth: 1GB/s, latency: 1us";
  const Cluster plain = cluster_of("name: t\nhosts: {count: 2}\n" + star + "}\n");
  CHECK(plain.links[1].queue == Queue::kFair);
  CHECK(plain.links[1].token_bucket == Bytes(0));
  CHECK(plain.shared_cores == 0);
  const Cluster lab = cluster_of("name: t\nhosts: {count: 2}\nshared_cores: 4\n" + star +
                                 ", queue: fifo, token_bucket: 64KiB}\n");
  CHECK(lab.links[1].queue == Queue::kFifo);
  CHECK(lab.links[1].token_bucket == Bytes(65'536.0));
  CHECK(lab.shared_cores == 4);
  CHECK(load_cluster("lab-star:queue=fifo").links[0].queue == Queue::kFifo);
  CHECK(load_cluster("lab-two-racks:queue=fifo").links.back().queue == Queue::kFifo);
  CHECK_THAT(message_of("name: t\nhosts: {count: 2}\n" + star + ", queue: fifa}\n"),
             Contains(":3: network.queue") && Contains("fifa") && Contains("did you mean 'fifo'"));
  CHECK_THAT(message_of("name: t\nhosts: {count: 2}\nshared_cores: 0\n" + star + "}\n"),
             Contains("at least 1"));
  CHECK_THAT(
      message_of("name: t\nhosts: {count: 2, devices: {model: v100-sxm}}\n" + star + ", queue: fifo}\n"),
      Contains("without devices"));
  CHECK_THAT(message_of("name: t\nhosts: {count: 2}\nswitches: [s]\nlinks:\n"
                        "  - {between: [host0, s], bandwidth: 1GB/s, latency: 1us, queue: fifo}\n"
                        "  - {between: [host1, s], bandwidth: 1GB/s, latency: 1us}\n"),
             Contains("the same at all links"));
}

TEST_CASE("a host without devices and NICs is one node, whose sockets nothing joins") {
  const std::string head = "name: t\nhosts: {sockets: 2, cores: 8";
  const Cluster cluster = cluster_of(head + "}\n");
  REQUIRE(cluster.nodes.size() == 1);
  CHECK(cluster.hosts[0].cores == 8);
  CHECK_THAT(message_of(head + ", smp: {bandwidht: 6GB/s}}\n"),
             Contains(":2: hosts.smp: unknown key 'bandwidht'") && Contains("bandwidth"));
  CHECK_THAT(message_of(head + ", smp: {bandwidth: 6GB/s}}\n"),
             Contains(":2: hosts.smp: has no effect without devices or nics"));
  CHECK_THAT(message_of("name: t\nhosts: {sockets: two}\n"), Contains("hosts.sockets"));
  CHECK(cluster_of(head + ", smp: {bandwidth: 6GB/s}, nics: {count: 1}}\n").links[0].bandwidth.count() ==
        Approx(6e9));
}

TEST_CASE("all NVLinks of a GPU together are at most those of its device") {
  const auto complaint = [](const std::string& nvlink) {
    return message_of("name: t\nhosts: {name: n, devices: {model: a100-sxm, count: 4}, nvlink: {" + nvlink +
                      "}}\n");
  };
  CHECK_THAT(complaint("pairs: [[gpu0, gpu1, 6], [gpu2, gpu0, 6], [gpu3, gpu2, 7]]"),
             Contains(":2: hosts.nvlink.pairs[2][2]: found 13 links of gpu2, device 'a100-sxm' has 12"));
  CHECK_THAT(complaint("switch: true, all_to_all: 4"),
             Contains("hosts.nvlink.all_to_all: found 24 links of gpu0, device 'a100-sxm' has 12"));
  CHECK_THAT(complaint("switch: true, pairs: [[gpu0, gpu1, 1]]"), Contains("found 13 links of gpu0"));
  CHECK_THAT(complaint("all_to_all: 5"), Contains("found 15 links of gpu0"));
  CHECK(complaint("all_to_all: 4").empty());
  CHECK(complaint("pairs: [[gpu0, gpu1, 6], [gpu2, gpu0, 6], [gpu3, gpu2, 6]]").empty());
}

TEST_CASE("a second link between two nodes is an error, except for NVLink beside PCIe") {
  CHECK_THAT(message_of("name: t\nhosts: {name: n, devices: {model: a100-sxm, count: 2}, nvlink: {pairs: "
                        "[[gpu0, gpu1, 6], [gpu1, gpu0, 6]]}}\n"),
             Contains("two links join 'n/gpu0' and 'n/gpu1'; expected one with the bandwidth of both"));
  CHECK_THAT(message_of("name: t\nhosts: {count: 2}\nlinks:\n"
                        "  - {between: [host0, host1], bandwidth: 1GB/s, latency: 1us}\n"
                        "  - {name: b, between: [host1, host0], bandwidth: 1GB/s, latency: 1us}\n"),
             Contains("two links join 'host0' and 'host1'"));
  const std::string parts =
      "name: t\nhosts:\n  - nodes: [{name: s, kind: socket}, {name: g, kind: device, device: gh200}]\n"
      "    links:\n      - {between: [g, s], kind: pcie, bandwidth: 48GB/s, latency: 1us}\n"
      "      - {name: c2c, between: [g, s], bandwidth: 300GB/s, latency: 1us, kind: ";
  CHECK(message_of(parts + "nvlink}\n").empty());
  CHECK_THAT(message_of(parts + "smp}\n"), Contains("two links join 'host/s' and 'host/g'"));
}

TEST_CASE("PCIe has a width or a bandwidth") {
  CHECK_THAT(message_of("name: t\nhosts: {nics: {count: 1}, pcie: {width: 8, bandwidth: 50GB/s}}\n"),
             Contains(":2: hosts.pcie.width: stands beside 'bandwidth'; expected one of both"));
}

TEST_CASE("the bandwidth between sockets follows the year of the devices unless the file sets it") {
  const auto between_sockets = [](const std::string& parts) {
    const Cluster cluster = cluster_of("name: t\nhosts: {name: n, sockets: 2, " + parts + "}\n");
    return cluster_files::link_named(cluster, "n/socket0-socket1").bandwidth.count();
  };
  CHECK(between_sockets("devices: {model: p100-pcie-12gb}") == Approx(6e9));
  CHECK(between_sockets("devices: {model: v100-sxm}") == Approx(10e9));
  CHECK(between_sockets("devices: {model: a100-sxm}") == Approx(16e9));
  CHECK(between_sockets("devices: {model: h100-sxm}") == Approx(22e9));
  CHECK(between_sockets("nics: {count: 1}") == Approx(22e9));
  CHECK(between_sockets("nics: {count: 1}, pcie: {generation: 3}") == Approx(10e9));
}

TEST_CASE("ranks fill host after host evenly") {
  Cluster cluster;
  for (const char* name : {"a", "b", "c", "d"}) cluster.add_host({name});
  CHECK(place_ranks(cluster, 8) == std::vector<int>{0, 0, 1, 1, 2, 2, 3, 3});
  CHECK(place_ranks(cluster, 4) == std::vector<int>{0, 1, 2, 3});
  CHECK(place_ranks(cluster, 2) == std::vector<int>{0, 1});
  CHECK(place_ranks(cluster, 5) == std::vector<int>{0, 0, 1, 1, 2});
}

}  // namespace
}  // namespace stepcast::cluster_test
