#include "sim/collectives/nccl_tuning.hpp"

#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <set>

#include "tests/collectives/nccl_reference.hpp"

namespace stepcast::nccl_tuning_test {
namespace {

using nccl_reference::cluster_named;

NcclGraph graph_of(const std::string& name) {
  const Cluster cluster = cluster_named(name);
  return NcclGraphs(cluster).of(cluster.places());
}

std::string choice_text(const NcclCost& cost) {
  return std::string(to_text(cost.algorithm)) + "/" + to_text(cost.protocol);
}

TEST_CASE("algorithm, protocol and time are those of NCCL's formulas within 2 %, in every row") {
  for (const nccl_reference::Row& row : nccl_reference::rows()) {
    INFO(row.cluster << " " << to_text(row.kind) << " " << row.message.count() << " B");
    const NcclCost cost = nccl_choice(graph_of(row.cluster), row.kind, row.message);
    CHECK(choice_text(cost) == row.choice);
    CHECK(cost.time(row.message).count() == Approx(row.time_s).epsilon(0.02));
  }
}

TEST_CASE("8 B over 2 P100 under one socket: 6.6 us and two hops of 1 us") {
  const NcclCost cost =
      nccl_choice(graph_of("p100x4-pcie:sockets=1,gpus=2"), CollectiveKind::kAllReduce, Bytes(8));
  CHECK(cost.latency.count() == Approx(8.6e-6));
  CHECK(cost.algbw.count() == Approx(5e9));  // half of 10 GB/s, and 2/2
}

TEST_CASE("faster links never make a collective slower: NCCL's choice is that of links without a scale") {
  for (const char* name : {"a100x8", "h100x8-hgx", "gb200-nvl72"})
    for (const CollectiveKind kind : {CollectiveKind::kAllReduce, CollectiveKind::kAllGather}) {
      Cluster cluster = cluster_named(name), faster = cluster;
      for (Link& link : faster.links) {
        link.scale = 1.5;
        link.bandwidth = 1.5 * link.bandwidth;
      }
      const std::vector<int> all = cluster.places(), places(all.begin(), all.begin() + 8);
      const NcclGraph slow = NcclGraphs(cluster).of(places), fast = NcclGraphs(faster).of(places);
      for (double bytes = 1024.0; bytes < 1e10; bytes *= 2.0) {
        INFO(name << " " << to_text(kind) << " " << bytes << " B");
        const NcclCost before = nccl_choice(slow, kind, Bytes(bytes)),
                       after = nccl_choice(fast, kind, Bytes(bytes));
        CHECK(choice_text(before) == choice_text(after));
        CHECK(after.time(Bytes(bytes)) <= before.time(Bytes(bytes)));
      }
    }
}

TEST_CASE("NVLS has at most 32 heads") {
  const Cluster rack = cluster_named("gb200-nvl72");
  const std::vector<int> all = rack.places();
  CHECK(NcclGraphs(rack).of({all.begin(), all.begin() + 72}).nvls.channels == 32);
  CHECK(NcclGraphs(rack).of({all.begin(), all.begin() + 16}).nvls.channels == 16);
}

TEST_CASE("LL128 needs NVLink and compute capability 7.0, NVLS an NVSwitch and 9.0, trees all-reduce") {
  const auto texts = [](const std::string& name, CollectiveKind kind) {
    std::set<std::string> result;
    for (const NcclCost& cost : nccl_costs(graph_of(name), kind, Bytes(1e6)))
      result.insert(choice_text(cost));
    return result;
  };
  using Texts = std::set<std::string>;
  CHECK(texts("p100x4-pcie", CollectiveKind::kAllReduce) ==
        Texts{"ring/LL", "ring/Simple", "tree/LL", "tree/Simple"});
  CHECK(texts("h100x8-hgx", CollectiveKind::kAllReduce) ==
        Texts{"ring/LL", "ring/LL128", "ring/Simple", "tree/LL", "tree/LL128", "tree/Simple", "NVLS/Simple"});
  CHECK_FALSE(texts("h100x4-direct", CollectiveKind::kAllReduce).contains("NVLS/Simple"));
  CHECK_FALSE(texts("a100x8", CollectiveKind::kAllReduce).contains("NVLS/Simple"));
  CHECK(texts("h100x8-hgx", CollectiveKind::kAllGather) == Texts{"ring/LL", "ring/LL128", "ring/Simple"});
  CHECK(texts("h100x8-hgx:nodes=2", CollectiveKind::kAllReduce).contains("NVLS tree/Simple"));
}

TEST_CASE("RCCL reduces less than 512 MiB between hosts in trees, and never inside a host") {
  const auto choice = [](const std::string& name, double bytes) {
    return choice_text(nccl_choice(graph_of(name), CollectiveKind::kAllReduce, Bytes(bytes)));
  };
  CHECK(choice("mi300x8:nodes=2", 256.0 * kMebi) == "tree/Simple");
  CHECK(choice("mi300x8:nodes=2", 512.0 * kMebi) == "ring/Simple");
  CHECK(choice("mi300x8", 256.0 * kMebi) == "ring/Simple");
}

TEST_CASE("trees win for small messages over many hosts, and their latency grows with the logarithm") {
  const NcclGraph many = graph_of("h100x8-hgx:nodes=32");
  const NcclCost small = nccl_choice(many, CollectiveKind::kAllReduce, Bytes(1024));
  CHECK(choice_text(small) == "tree/LL");
  CHECK(small.latency.count() == Approx((6.8 + 2.0 * (7 * 0.6 + 5 * 5.0)) * 1e-6));
}

/// A100 with eight adapters of 24 GB/s per host, so eight channels of 24 GB/s: ncclTopoTuneModel by hand, in
/// microseconds and GB/s. Of an array of 16 MiB, for which the factor of trees is 0.9, 0.9 and 0.7, and rings
/// under Simple take 1.4 times. LL's hop between hosts is 2.7 us to NCCL, which is less than the modelled
/// wire: four links of PCIe and two cables, 3 us.
struct ByHand {
  double latency, algbw;
};

std::map<std::string, ByHand> by_hand(int hosts, CollectiveKind kind) {
  const double ranks = 8.0 * hosts, bus = 8.0 * 24.0, levels = std::floor(std::log2(hosts));
  const bool two = hosts == 2, all_reduce = kind == CollectiveKind::kAllReduce;
  const double steps = (all_reduce ? 2.0 : 1.0) * (ranks - 1.0),
               between = (all_reduce ? 2.0 : 1.0) * (hosts - 1.0);
  const double inside = steps - between, ratio = ranks / steps, plateau = all_reduce ? 1.4 : 1.0;
  const double ll_most = two ? 39.0 : 20.4;  // of Volta's row: between hosts the processor moves LL
  std::map<std::string, ByHand> result{
      {"ring/LL", {6.6 + inside * 1.0 + between * 3.0, std::min(ll_most, bus / 2.0) * ratio}},
      {"ring/LL128", {14.0 + inside * 1.9 + between * 4.0, std::min(0.92 * bus, 8.0 * 20.0) * ratio}},
      {"ring/Simple", {plateau * (8.4 + inside * 3.4 + between * 14.0), bus * ratio}}};
  if (!all_reduce) return result;
  const double tree = std::min(0.92 * bus, 8.0 * (two ? 23.6 : 17.8));
  result["tree/LL"] = {6.8 + 14.0 * 0.6 + 2.0 * levels * 5.0, 0.5 * std::min(tree / 3.8, ll_most) * 0.9};
  result["tree/LL128"] = {14.0 + 14.0 * 1.25 + 2.0 * levels * 8.5,
                          0.5 * std::min(tree * 120.0 / 128.0, 8.0 * 20.0) * 0.9};
  result["tree/Simple"] = {8.4 + 14.0 * 4.0 + 2.0 * levels * 14.0, 0.5 * tree * 0.7};
  return result;
}

TEST_CASE("rings and trees over 2, 4, 16 and 128 hosts cost what NCCL's formulas give by hand") {
  const Bytes message(16.0 * 1024 * 1024);
  for (const int hosts : {2, 4, 16, 128}) {
    const NcclGraph graph = graph_of("a100x8:nodes=" + std::to_string(hosts));
    CHECK(graph.channels == 8);
    CHECK(graph.bandwidth.count() == Approx(24e9));
    for (const CollectiveKind kind :
         {CollectiveKind::kAllReduce, CollectiveKind::kAllGather, CollectiveKind::kReduceScatter}) {
      const std::map<std::string, ByHand> expected = by_hand(hosts, kind);
      const std::vector<NcclCost> costs = nccl_costs(graph, kind, message);
      CHECK(costs.size() == expected.size());
      for (const NcclCost& cost : costs) {
        INFO(hosts << " hosts, " << to_text(kind) << " " << choice_text(cost));
        REQUIRE(expected.contains(choice_text(cost)));
        CHECK(cost.latency.count() == Approx(1e-6 * expected.at(choice_text(cost)).latency));
        CHECK(cost.algbw.count() == Approx(1e9 * expected.at(choice_text(cost)).algbw));
      }
    }
  }
}

TEST_CASE("NCCL never takes longer with more bandwidth, nor less time with more bytes") {
  for (const CollectiveKind kind :
       {CollectiveKind::kAllReduce, CollectiveKind::kAllGather, CollectiveKind::kBroadcast}) {
    double last = 1e9;
    for (const double rate : {50, 100, 200, 400, 800}) {
      const NcclGraph graph =
          graph_of("h100x8-hgx:nodes=2,rate=" + std::to_string(static_cast<int>(rate)) + "Gb/s");
      const double now = nccl_choice(graph, kind, Bytes(1e8)).time(Bytes(1e8)).count();
      INFO(to_text(kind) << " at " << rate << " Gb/s: " << now);
      CHECK(now <= last);
      last = now;
    }
    for (const std::string name : {"p100x4-pcie", "h100x4-direct"}) {
      const NcclGraph graph = graph_of(name);
      double before = 0.0;
      for (int power = 0; power <= 20; ++power) {  // 1 B to 3.5 GB
        const double message = std::pow(3.0, power);
        const double now = nccl_choice(graph, kind, Bytes(message)).time(Bytes(message)).count();
        CHECK(now >= before);
        before = now;
      }
    }
  }
}

TEST_CASE("NVLink SHARP is not chosen where NCCL lacks it for the type, neither in one host nor in trees") {
  for (const std::string name : {"h100x8-hgx", "h100x8-hgx:nodes=2"}) {
    INFO(name);
    const NcclGraph graph = graph_of(name);
    const Bytes message(256.0 * kMebi);
    CHECK(nccl_choice(graph, CollectiveKind::kAllReduce, message).is_nvls());
    CHECK_FALSE(nccl_choice(graph, CollectiveKind::kAllReduce, message, {.nvls = false}).is_nvls());
  }
}

TEST_CASE("large messages occupy two blocks per channel, NVLS 16, small ones a single block") {
  const NcclGraph graph = graph_of("h100x8-hgx");
  const auto blocks = [&graph](CollectiveKind kind, double bytes) {
    return nccl_blocks(graph, nccl_choice(graph, kind, Bytes(bytes)), Bytes(bytes));
  };
  CHECK(blocks(CollectiveKind::kAllGather, 1e9) == 24);
  CHECK(blocks(CollectiveKind::kAllReduce, 1e9) == 16);
  CHECK(blocks(CollectiveKind::kAllReduce, 1024) == 1);
}

}  // namespace
}  // namespace stepcast::nccl_tuning_test
