#include "sim/collectives/nccl_reached.hpp"

#include <catch2/catch.hpp>
#include <cmath>

#include "core/error.hpp"
#include "tests/collectives/nccl_reference.hpp"
#include "topologies/link_tiers.hpp"

namespace stepcast::nccl_reached_test {
namespace {

using nccl_reference::cluster_named;

/// Groups of one cluster: its first GPUs.
struct World {
  explicit World(const std::string& name, const std::optional<NcclParameters>& laws = std::nullopt)
      : cluster(cluster_named(name)), graphs(cluster, laws) {}
  const NcclGraph& of(int gpus) {
    std::vector<int> places = cluster.places();
    places.resize(static_cast<std::size_t>(gpus));
    return graphs.of(places);
  }
  Seconds time(CollectiveKind kind, int gpus, double bytes) {
    const NcclGraph& graph = of(gpus);
    return nccl_reached(graph, kind, Bytes(bytes), nccl_choice(graph, kind, Bytes(bytes))).time(Bytes(bytes));
  }
  Cluster cluster;
  NcclGraphs graphs;
};

TEST_CASE("an empty all-gather over 2 H100 is a launch and one hop: 4.62 and 0.78 us") {
  const double time = World("h100x8-hgx").time(CollectiveKind::kAllGather, 2, 1.0).count();
  CHECK(time == Approx((9.146 + 1.540) / 1.98 * 1e-6).epsilon(1e-3));
}

TEST_CASE("a law that is twice as long takes its own time more, at every step") {
  NcclParameters laws = nccl_parameters(90);
  const double hop = laws.ll_hop;
  laws.ll_hop *= 2.0;
  for (const int gpus : {2, 4, 8}) {
    const double more = (World("h100x8-hgx", laws).time(CollectiveKind::kAllReduce, gpus, 8.0) -
                         World("h100x8-hgx").time(CollectiveKind::kAllReduce, gpus, 8.0))
                            .count();
    CHECK(more == Approx(2.0 * (gpus - 1) * hop * 1e-6));
  }
}

TEST_CASE(
    "waits are cycles: generations differ by their clock unless a file in topologies/nccl has other values") {
  CHECK(nccl_parameters(100).simple_start == Approx(nccl_parameters(90).simple_start * 1.98 / 1.965));
  CHECK(nccl_parameters(70).ll_rate == Approx(nccl_parameters(90).ll_rate * 1.53 / 1.98));
  CHECK(nccl_parameters(103).launch == nccl_parameters(100).launch);
  CHECK(nccl_parameters(30).launch == nccl_parameters(60).launch);
}

TEST_CASE(
    "a large all-gather moves at the bus of the search, and copies a rank's own share at a part of its "
    "memory's rate") {
  World world("h100x8-hgx");
  const double bytes = 1e12;
  const double expected = 7.0 / 8.0 * bytes / 360e9 + bytes / 8.0 / (0.301 * 3.35e12);
  CHECK(world.time(CollectiveKind::kAllGather, 8, bytes).count() == Approx(expected).epsilon(0.001));
}

TEST_CASE("L40S: two at one switch get the link, more the host's rate, eight that between sockets") {
  World world("l40s-pcie");
  const auto busbw = [&](int gpus) {
    const double bytes = 1e9;
    return (gpus - 1.0) / gpus * bytes / world.time(CollectiveKind::kAllGather, gpus, bytes).count() / 1e9;
  };
  CHECK(busbw(2) > 15.0);
  CHECK(busbw(4) == Approx(5.02).epsilon(0.03));
  CHECK(busbw(8) == Approx(1.33).epsilon(0.03));
}

TEST_CASE("more bytes never take less within one choice, more GPUs never less") {
  for (const char* name : {"h100x8-hgx", "a100x8", "h100x8-pcie", "h100x8-hgx:nodes=4"}) {
    World world(name);
    const NcclGraph& graph = world.graphs.of(world.cluster.places());
    for (const CollectiveKind kind : {CollectiveKind::kAllReduce, CollectiveKind::kReduceScatter})
      for (std::size_t which = 0; which < nccl_costs(graph, kind, Bytes(1)).size(); ++which) {
        Seconds before(0);
        for (double bytes = 64; bytes < 1e10; bytes *= 2) {
          const NcclCost choice = nccl_costs(graph, kind, Bytes(bytes)).at(which);
          if (choice.algorithm == NcclAlgorithm::kTree) continue;  // NCCL corrects them by size
          const Seconds now = nccl_reached(graph, kind, Bytes(bytes), choice).time(Bytes(bytes));
          INFO(name << " " << to_text(graph, choice) << " " << bytes);
          CHECK(now >= before);
          before = now;
        }
      }
  }
  World world("a100x8");
  for (const double bytes : {8.0, 1e5, 1e9})
    CHECK(world.time(CollectiveKind::kAllReduce, 8, bytes) >
          world.time(CollectiveKind::kAllReduce, 2, bytes));
}

TEST_CASE("messages between two GPUs: LL up to 16 KiB, then the way's bandwidth") {
  World world("p100x4-pcie");
  const NcclPair& pair = world.graphs.pair(world.cluster.places()[0], world.cluster.places()[1]);
  const NcclParameters& laws = nccl_parameters(60);
  const double start = laws.launch + laws.message_start + laws.message_peer;
  const NcclCost small = nccl_point_to_point(pair, Bytes(1000));
  CHECK(small.protocol == NcclProtocol::kLl);
  CHECK(small.algbw.count() == Approx(5e9));
  CHECK(small.latency.count() == Approx(1e-6 * (start + 1.0 + 1.0 / laws.message_rate)));
  const NcclCost large = nccl_point_to_point(pair, Bytes(1e9));
  CHECK(large.protocol == NcclProtocol::kSimple);
  CHECK(large.time(Bytes(1e9)).count() == Approx(0.1).epsilon(0.001));
}

TEST_CASE("between hosts on Ethernet NCCL's sockets copy and send in turn, and every hop takes 20 us more") {
  struct Reported {
    double wire, least, most;  // GB/s: of the wire, and what users report
  };
  for (const Reported& one : {Reported{1.18, 1.0, 1.15}, {2.94, 2.0, 2.6}, {11.8, 3.0, 6.0}}) {
    const double rate = 1e-9 * nccl_tcp_rate(BytesPerSecond(1e9 * one.wire)).count();
    CHECK(rate == Approx(one.wire * 8.0 / (one.wire + 8.0)));
    CHECK(rate >= one.least);
    CHECK(rate <= one.most);
  }
  for (const int hosts : {2, 4, 16}) {
    const std::string size = "hosts=" + std::to_string(hosts);
    World tcp("h100-hosts:rate=100Gb/s," + size), roce("h100-hosts:protocol=roce,rate=100Gb/s," + size);
    const NcclGraph& graph = tcp.of(hosts);
    CHECK(graph.tcp());
    CHECK_FALSE(roce.of(hosts).tcp());
    const double wire = 0.941 * 12.5e9, large = 1e12, steps = 2.0 * (hosts - 1);
    const NcclCost ring{.algorithm = NcclAlgorithm::kRing,
                        .protocol = NcclProtocol::kSimple,
                        .latency = Seconds(0),
                        .algbw = BytesPerSecond(wire * hosts / steps),
                        .network_hops = hosts - 1};
    const double moved =
        nccl_reached(graph, CollectiveKind::kAllReduce, Bytes(large), ring).time(Bytes(large)).count();
    CHECK(moved ==
          Approx(steps / hosts * large * (1.0 / wire + 1.0 / 8e9) + large / hosts / (0.301 * 3.35e12))
              .epsilon(1e-3));
    // Alike in all else: LL from RDMA's graph and from this one.
    NcclGraph rdma = graph;
    rdma.sockets.message = BytesPerSecond(HUGE_VAL);
    const NcclCost small = nccl_choice(graph, CollectiveKind::kAllGather, Bytes(8));
    const Seconds more = nccl_reached(graph, CollectiveKind::kAllGather, Bytes(8), small).latency -
                         nccl_reached(rdma, CollectiveKind::kAllGather, Bytes(8), small).latency;
    CHECK(more.count() == Approx(20e-6 * (hosts - 1)));
    for (const double bytes : {8.0, 1e6, 1e9})
      for (const CollectiveKind kind :
           {CollectiveKind::kAllReduce, CollectiveKind::kAllGather, CollectiveKind::kBroadcast})
        CHECK(tcp.time(kind, hosts, bytes) > roce.time(kind, hosts, bytes));
  }
}

TEST_CASE("a scaled Ethernet moves what its sockets copy and send in turn, at most 8 GB/s") {
  for (const double factor : {0.5, 1.0, 10.0}) {
    Cluster cluster = cluster_named("h100-hosts:hosts=4,rate=25Gb/s");
    REQUIRE(scale_links(cluster, "network1", factor));
    NcclGraphs graphs(cluster);
    const NcclGraph& graph = graphs.of(cluster.places());
    const BytesPerSecond wire(factor * 0.941 * 3.125e9);
    CHECK((graph.channels * graph.sockets.part * graph.bandwidth).count() ==
          Approx(nccl_tcp_rate(wire).count()).epsilon(1e-3));
  }
}

TEST_CASE("an all-to-all between two hosts on Ethernet is as fast as the message to the other one") {
  World world("h100-hosts:hosts=2,rate=400Gb/s");
  const Bytes message(4e9), half = message / 2.0;
  const std::vector<int> places = world.cluster.places();
  const double alone = nccl_point_to_point(world.graphs.pair(places[0], places[1]), half).time(half).count();
  const double together = nccl_all_to_all(world.of(2), message).time(message).count();
  CHECK(together > 0.99 * alone);
  CHECK(together < 1.02 * alone);
}

TEST_CASE("laws are set by name; an unknown one gets the nearest") {
  NcclParameters laws = nccl_parameters(90);
  laws.set({{"ll_hop", 3.0}});
  CHECK(laws.ll_hop == 3.0);
  CHECK(laws.values().at("ll_hop") == 3.0);
  CHECK_THROWS_WITH(laws.set({{"ll_hops", 3.0}}), Catch::Contains("ll_hop"));
  CHECK_THROWS_AS(laws.set({{"ll_hop", -1.0}}), InputError);
}

}  // namespace
}  // namespace stepcast::nccl_reached_test
