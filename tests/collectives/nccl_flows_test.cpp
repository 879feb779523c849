#include "sim/collectives/nccl_flows.hpp"

#include <catch2/catch.hpp>

#include "tests/collectives/nccl_reference.hpp"

namespace stepcast::nccl_flows_test {
namespace {

using nccl_reference::cluster_named;

std::vector<NcclFlow> flows_of(const NcclGraph& graph, NcclAlgorithm algorithm, CollectiveKind kind,
                               int root = 0) {
  NcclCost cost;
  cost.algorithm = algorithm;
  return nccl_flows(graph, cost, kind, {Bytes(1e6), graph.ranks, root});
}

std::vector<double> sent(const std::vector<NcclFlow>& flows, int ranks) {
  std::vector<double> result(static_cast<std::size_t>(ranks));
  for (const NcclFlow& flow : flows) result[static_cast<std::size_t>(flow.from)] += flow.payload.count();
  return result;
}

double total(const std::vector<NcclFlow>& flows) {
  double sum = 0.0;
  for (const NcclFlow& flow : flows) sum += flow.payload.count();
  return sum;
}

TEST_CASE("bytes that a ring of NCCL sends equal the closed form of the ring, on every rank") {
  for (const std::string name : {"h100x8-hgx", "h100x4-direct", "p100x4-pcie", "h100x8-hgx:nodes=3"}) {
    const Cluster cluster = cluster_named(name);
    const NcclGraph graph = NcclGraphs(cluster).of(cluster.places());
    for (const CollectiveKind kind :
         {CollectiveKind::kAllReduce, CollectiveKind::kAllGather, CollectiveKind::kReduceScatter}) {
      INFO(name << " " << to_text(kind));
      const double expected = algorithm_for(kind, "").sent({Bytes(1e6), graph.ranks}, 0).count();
      for (const double bytes : sent(flows_of(graph, NcclAlgorithm::kRing, kind), graph.ranks))
        CHECK(bytes == Approx(expected));
    }
    CHECK(total(flows_of(graph, NcclAlgorithm::kRing, CollectiveKind::kBroadcast, 2)) ==
          Approx((graph.ranks - 1) * 1e6));
  }
}

TEST_CASE("a broadcast sends nothing to its root") {
  const Cluster cluster = cluster_named("h100x4-direct");
  const NcclGraph graph = NcclGraphs(cluster).of(cluster.places());
  for (const NcclFlow& flow : flows_of(graph, NcclAlgorithm::kRing, CollectiveKind::kBroadcast, 2))
    CHECK(flow.to != 2);
}

TEST_CASE("trees send the array up and down every edge of a spanning tree: 2 (n - 1) S in all") {
  for (const std::string name :
       {"h100x8-hgx", "h100x4-direct", "h100x8-hgx:nodes=2", "h100x8-hgx:nodes=5", "h100x8-hgx:nodes=8"}) {
    INFO(name);
    const Cluster cluster = cluster_named(name);
    const NcclGraph graph = NcclGraphs(cluster).of(cluster.places());
    CHECK(total(flows_of(graph, NcclAlgorithm::kTree, CollectiveKind::kAllReduce)) ==
          Approx(2.0 * (graph.ranks - 1) * 1e6));
  }
}

TEST_CASE(
    "NVLS sends the array and a shard per GPU; between hosts every byte goes up and down two half trees") {
  const Cluster one = cluster_named("h100x8-hgx");
  const NcclGraph graph = NcclGraphs(one).of(one.places());
  for (const double bytes : sent(flows_of(graph, NcclAlgorithm::kNvls, CollectiveKind::kAllReduce), 8))
    CHECK(bytes == Approx(1e6 * 9.0 / 8.0));
  const Cluster three = cluster_named("h100x8-hgx:nodes=3");
  const NcclGraph larger = NcclGraphs(three).of(three.places());
  CHECK(total(flows_of(larger, NcclAlgorithm::kNvlsTree, CollectiveKind::kAllReduce)) ==
        Approx(24 * 1e6 * 9.0 / 8.0 + 2 * 2 * 1e6));
}

TEST_CASE("one rank sends nothing") {
  const Cluster cluster = cluster_named("h100x8-hgx");
  const NcclGraph graph = NcclGraphs(cluster).of({cluster.places().front()});
  CHECK(flows_of(graph, NcclAlgorithm::kRing, CollectiveKind::kAllReduce).empty());
}

}  // namespace
}  // namespace stepcast::nccl_flows_test
