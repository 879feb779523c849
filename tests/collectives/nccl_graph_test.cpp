#include "sim/collectives/nccl_graph.hpp"

#include <catch2/catch.hpp>
#include <map>
#include <set>
#include <string>

#include "core/error.hpp"
#include "tests/collectives/nccl_reference.hpp"
#include "tests/topologies/cluster_files.hpp"
#include "topologies/devices.hpp"
#include "topologies/nccl_tables.hpp"

namespace stepcast::nccl_graph_test {
namespace {

using nccl_reference::cluster_named;

NcclGraph graph_of(const Cluster& cluster, std::size_t ranks = 0) {
  std::vector<int> places = cluster.places();
  if (ranks > 0) places.resize(ranks);
  return NcclGraphs(cluster).of(places);
}

void check_channels(const std::string& cluster, std::size_t ranks, int channels, double gb_per_s) {
  INFO(cluster << ", " << ranks << " ranks");
  const NcclGraph graph = graph_of(cluster_named(cluster), ranks);
  CHECK(graph.channels == channels);
  CHECK(graph.bandwidth.count() == Approx(gb_per_s * 1e9));
}

TEST_CASE("the search finds the channels that NCCL's logs show") {
  check_channels("h100x8-hgx", 8, 12, 30);  // NCCL issue 1367: 12 channels, 360 GB/s
  check_channels("h100x4-nvlink", 4, 12, 30);
  check_channels("h100x4-direct", 4, 12, 30);
  check_channels("a100x8", 8, 12, 20);
  check_channels("p100x4-pcie:sockets=1", 4, 1, 10);  // 12 GB/s less what Intel's root complex takes
  check_channels("p100x4-pcie:sockets=1", 2, 1, 10);
  check_channels("p100x4-pcie", 4, 1, 6);           // QPI
  check_channels("h100x8-hgx:nodes=2", 16, 8, 48);  // one ring per adapter of 400 Gb/s
}

TEST_CASE("four GPUs joined two by two need rings of different orders to fill their links") {
  const NcclGraph direct = graph_of(cluster_named("h100x4-direct"));
  CHECK(direct.rings.size() > 1);
  CHECK_FALSE(direct.same_channels);
  CHECK(direct.nvls.channels == 0);
  const NcclGraph switched = graph_of(cluster_named("h100x4-nvlink"));
  CHECK(switched.rings.size() == 1);
  CHECK(switched.same_channels);
  CHECK(switched.nvls.channels == 4);
}

TEST_CASE("NVLink SHARP: a head on every GPU, as fast as its NVLinks allow") {
  const NcclGraph eight = graph_of(cluster_named("h100x8-hgx"));
  CHECK(eight.nvls.channels == 8);
  CHECK(eight.nvls.bandwidth.count() == Approx(40e9));
  const NcclGraph four = graph_of(cluster_named("h100x4-nvlink"));
  CHECK(four.nvls.channels == 4);
  CHECK(four.nvls.bandwidth.count() == Approx(60e9));
  CHECK(graph_of(cluster_named("a100x8")).nvls.channels == 0);
}

TEST_CASE("a ring passes host after host, every rank once, and no link carries more than it can") {
  for (const std::string name : {"h100x8-hgx:nodes=3", "h100x4-direct", "p100x4-pcie", "a100x8:nodes=2"}) {
    INFO(name);
    const Cluster cluster = cluster_named(name);
    NcclGraphs graphs(cluster);
    const std::vector<int> places = cluster.places();
    const NcclGraph& graph = graphs.of(places);
    std::map<std::pair<int, bool>, double> used;
    double share = 0.0;
    for (const NcclRing& ring : graph.rings) {
      CHECK(std::set<int>(ring.order.begin(), ring.order.end()).size() == places.size());
      share += ring.share;
      int crossings = 0;
      for (std::size_t i = 0; i < ring.order.size(); ++i) {
        const int from = places[static_cast<std::size_t>(ring.order[i])];
        const int to = places[static_cast<std::size_t>(ring.order[(i + 1) % ring.order.size()])];
        crossings += graphs.pair(from, to).hardware == NcclHardware::kNetwork ? 1 : 0;
        for (const Hop& hop : graphs.path(from, to))
          used[{hop.link, hop.forward}] += graph.channels * ring.share * graph.bandwidth.count();
      }
      CHECK(crossings == (graph.nodes > 1 ? graph.nodes : 0));
    }
    CHECK(share == Approx(1.0));
    for (const auto& [link, bandwidth] : used)
      CHECK(bandwidth <=
            cluster.links[static_cast<std::size_t>(link.first)].bandwidth.count() * (1.0 + 1e-9));
  }
}

TEST_CASE("the host with a degraded adapter sets the pace of all") {
  const Cluster whole = cluster_named("h100x8-hgx:nodes=3");
  for (const char* name : {"node0/nic0-switch", "node2/nic3-switch"}) {
    INFO(name);
    Cluster cluster = whole;
    for (Link& link : cluster.links)
      if (link.name == name) {
        link.remaining = 0.5;
        link.bandwidth = 0.5 * link.bandwidth;
      }
    CHECK(graph_of(cluster).bandwidth.count() == Approx(0.5 * graph_of(whole).bandwidth.count()));
    CHECK(graph_of(cluster).channels == graph_of(whole).channels);
  }
}

TEST_CASE("rails that meet inside hosts alone: every adapter has its ring") {
  const Cluster cluster = cluster_files::cluster_of(
      "name: t\nhosts: {count: 4, sockets: 2, devices: {model: h100-sxm, count: 8}, nvlink: {switch: true}, "
      "pcie: {switches: 4}, nics: {count: 8}}\n"
      "network: {kind: rails, protocol: infiniband, rate: 400Gb/s}\n");
  const NcclGraph graph = graph_of(cluster);
  CHECK(graph.channels * graph.bandwidth.count() >= 8 * 48e9 * (1.0 - 1e-9));
}

TEST_CASE("ways between GPUs: NVLink, PCIe through one socket takes 6/5, through two not") {
  const Cluster pcie = cluster_named("p100x4-pcie");
  NcclGraphs graphs(pcie);
  const std::vector<int> gpus = pcie.places();
  CHECK(graphs.pair(gpus[0], gpus[1]).hardware == NcclHardware::kPcie);
  CHECK(graphs.pair(gpus[0], gpus[1]).overhead == Approx(1.2));
  CHECK(graphs.pair(gpus[0], gpus[1]).bandwidth.count() == Approx(10e9));
  CHECK(graphs.pair(gpus[0], gpus[3]).overhead == Approx(1.0));
  CHECK(graphs.pair(gpus[0], gpus[3]).bandwidth.count() == Approx(6e9));
  const Cluster nvlink = cluster_named("h100x4-nvlink");
  CHECK(NcclGraphs(nvlink).pair(nvlink.places()[0], nvlink.places()[1]).hardware == NcclHardware::kNvLink);
}

TEST_CASE("rings enter a host with fewer GPUs by all of its adapters") {
  const auto bus = [](std::size_t ranks) {
    const NcclGraph graph = graph_of(cluster_named("h100x8-hgx:nodes=3"), ranks);
    return graph.bandwidth.count() * graph.channels;
  };
  CHECK(bus(12) >= 0.5 * bus(16));  // four of eight
  CHECK(bus(10) >= 0.25 * bus(16));
  CHECK(bus(20) == Approx(bus(12)));  // as many adapters of the smallest host
  CHECK(bus(18) == Approx(bus(10)));
}

TEST_CASE("RCCL has rings over pairs of links, without LL128 and NVLink SHARP") {
  const NcclGraph graph = graph_of(cluster_named("mi300x8"));
  CHECK(graph.channels * graph.bandwidth.count() > 0.9 * 7 * 48e9);
  CHECK(graph.nvls.channels == 0);
  CHECK(nccl_tables(device_model("mi300x").collectives_as()).ring_ll128_most[0] == 0.0);
}

TEST_CASE("ranks without a GPU of their own are refused, and the cluster is named") {
  using Catch::Contains;
  const Cluster laptop = cluster_named("laptop");
  CHECK_THROWS_WITH(check_nccl_places(laptop, place_ranks(laptop, 2)),
                    Contains("'laptop'") && Contains("no devices"));
  const Cluster four = cluster_named("h100x4-nvlink");
  CHECK_THROWS_WITH(check_nccl_places(four, place_ranks(four, 8)),
                    Contains("'h100x4-nvlink'") && Contains("4 for 8 ranks"));
  CHECK_NOTHROW(check_nccl_places(four, place_ranks(four, 4)));
}

}  // namespace
}  // namespace stepcast::nccl_graph_test
