#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "sim/collectives/nccl_reached.hpp"
#include "sim/replay/environment.hpp"
#include "tests/collectives/nccl_reference.hpp"
#include "tests/worlds.hpp"

namespace stepcast::nccl_test {
namespace {

using namespace worlds;
using nccl_reference::cluster_named;

const Model kNoModel;

Result replay_nccl(const Schedule& schedule, const Cluster& cluster, const Model& model = kNoModel,
                   Fidelity fidelity = Fidelity::kAutomatic) {
  ReplayInput input = input_of(schedule, model, cluster);
  NcclGraphs graphs(cluster);
  input.backend = "nccl";
  input.nccl_graphs = &graphs;
  input.fidelity = fidelity;
  return replay(input);
}

double time_of(CollectiveKind kind, int ranks, double message, const Cluster& cluster,
               Fidelity fidelity = Fidelity::kAutomatic) {
  return replay_nccl(one_collective(kind, ranks, message), cluster, kNoModel, fidelity).median_step_time_s();
}

double message_level_s(const Result& result) {
  REQUIRE(result.notes.at("collective_fidelity") == "message");
  return result.median_step_time_s();
}

TEST_CASE(
    "replayed over an idle cluster, NCCL's choices are its formulas' and take what the laws say within 2 %") {
  for (const nccl_reference::Row& row : nccl_reference::rows()) {
    INFO(row.cluster << " " << to_text(row.kind) << " " << row.message.count() << " B");
    const Cluster cluster = cluster_named(row.cluster);
    const auto ranks = static_cast<int>(cluster.places().size());
    const Result result = replay_nccl(one_collective(row.kind, ranks, row.message.count()), cluster);
    NcclGraphs graphs(cluster);
    const NcclGraph& graph = graphs.of(cluster.places());
    const NcclCost cost =
        nccl_reached(graph, row.kind, row.message, nccl_choice(graph, row.kind, row.message));
    CHECK(result.median_step_time_s() == Approx(cost.time(row.message).count()).epsilon(0.02));
    CHECK_THAT(result.notes.at("nccl"), Catch::Contains(": " + row.choice + " "));
    CHECK(result.configuration.backend == "nccl");
  }
}

TEST_CASE("on several hosts the replay is within 2 % of the formulas") {
  for (const std::string name : {"h100x8-hgx:nodes=2", "h100x8-hgx:nodes=5", "a100x8:nodes=4", "two-racks"}) {
    const Cluster cluster = cluster_named(name);
    NcclGraphs graphs(cluster);
    const NcclGraph& graph = graphs.of(cluster.places());
    for (const CollectiveKind kind :
         {CollectiveKind::kAllReduce, CollectiveKind::kAllGather, CollectiveKind::kBroadcast}) {
      for (const double message : {8.0, 1e6, 1e9}) {
        const NcclCost cost =
            nccl_reached(graph, kind, Bytes(message), nccl_choice(graph, kind, Bytes(message)));
        INFO(name << " " << to_text(kind) << " " << message << " B " << to_text(graph, cost));
        CHECK(time_of(kind, graph.ranks, message, cluster) ==
              Approx(cost.time(Bytes(message)).count()).epsilon(0.02));
      }
    }
  }
}

/// Each of the groups reduces `message` bytes at once; only the first does where `both` is false.
Result groups(const std::vector<std::vector<int>>& ranks, const Cluster& cluster, double message,
              Fidelity fidelity, bool both = true, const std::string& backend = "nccl",
              const Calibration* calibration = nullptr) {
  Schedule schedule = same_program(static_cast<int>(cluster.places().size()), {});
  schedule.groups.clear();
  schedule.programs.clear();
  for (std::size_t group = 0; group < ranks.size(); ++group) {
    schedule.groups.push_back({"group" + std::to_string(group), ranks[group]});
    Collective call;
    call.message = Bytes(message);
    call.group = static_cast<int>(group);
    schedule.programs.push_back({{operation("reduce", Stream::kComm, call)}});
    if (group > 0 && !both) schedule.programs.back().ops.clear();
    for (const int rank : ranks[group])
      schedule.program_of_rank[static_cast<std::size_t>(rank)] = static_cast<int>(group);
  }
  ReplayInput input = input_of(schedule, kNoModel, cluster);
  NcclGraphs graphs(cluster);
  input.backend = backend;
  if (backend == "nccl") input.nccl_graphs = &graphs;
  input.calibration = calibration;
  input.fidelity = fidelity;
  return replay(input);
}

double seconds(const Result& result) { return result.median_step_time_s(); }

TEST_CASE("two groups of NCCL over one oversubscribed uplink share it") {
  const Cluster cluster = cluster_named("two-racks");
  const std::vector<std::vector<int>> ranks{{0, 1, 4, 5}, {2, 3, 6, 7}};
  const double alone = seconds(groups(ranks, cluster, 400e6, Fidelity::kAggregate, false));
  CHECK(seconds(groups(ranks, cluster, 400e6, Fidelity::kAggregate)) > 1.6 * alone);
}

/// Two racks of `hosts` hosts at 10 GB/s.
Cluster narrow_racks(int hosts, double uplink) {
  Cluster cluster;
  cluster.name = "narrow_racks";
  for (int i = 0; i < 2 * hosts; ++i) cluster.add_host({"host" + std::to_string(i), 1, Bytes(0), 1.0});
  const int left = cluster.add_node({"left", NodeKind::kSwitch});
  const int right = cluster.add_node({"right", NodeKind::kSwitch});
  const auto link = [&cluster](const std::string& name, int a, int b, double bandwidth = 10e9) {
    cluster.links.push_back({name, a, b, BytesPerSecond(bandwidth), Seconds(1e-6)});
  };
  for (int i = 0; i < 2 * hosts; ++i) link("link" + std::to_string(i), i, i < hosts ? left : right);
  link("uplink", left, right, uplink);
  return cluster;
}

TEST_CASE("two groups of ideal and Gloo rings over one narrow uplink: aggregate within 3 % of messages") {
  const Calibration costs = calibration();
  for (const int half : {2, 4, 6}) {
    const Cluster wide = narrow_racks(2 * half, 10e9);
    const Cluster narrow = narrow_racks(2 * half, 0.5e9);  // less than Gloo's endpoints move
    std::vector<std::vector<int>> ranks(2);
    for (int rack = 0; rack < 2; ++rack)
      for (int i = 0; i < 2 * half; ++i)
        ranks[static_cast<std::size_t>(i / half)].push_back(2 * half * rack + i);
    for (const double message : {1e6, 25e6, 100e6}) {
      for (const Calibration* calibration : {static_cast<const Calibration*>(nullptr), &costs}) {
        const Cluster& cluster = calibration == nullptr ? wide : narrow;
        INFO((calibration == nullptr ? "ideal" : "gloo")
             << ", groups of " << 2 * half << ", " << message << " B");
        const double exact =
            message_level_s(groups(ranks, cluster, message, Fidelity::kMessage, true, "", calibration));
        CHECK(seconds(groups(ranks, cluster, message, Fidelity::kAggregate, true, "", calibration)) ==
              Approx(exact).epsilon(0.03));
      }
    }
    const double alone = seconds(groups(ranks, wide, 100e6, Fidelity::kAggregate, false, ""));
    CHECK(seconds(groups(ranks, wide, 100e6, Fidelity::kAggregate, true, "")) > 1.9 * alone);
  }
}

TEST_CASE("two groups behind the same PCIe switches get half of their link each") {
  const Cluster cluster = cluster_named("p100x4-switched");
  const std::vector<std::vector<int>> ranks{{0, 2}, {1, 3}};
  const double alone = seconds(groups(ranks, cluster, 1e9, Fidelity::kAutomatic, false));
  // The link's 10 GB/s are shared; alone, a group gets less than all of them.
  const double both = seconds(groups(ranks, cluster, 1e9, Fidelity::kAutomatic));
  CHECK(both == Approx(2.0 * 1e9 / 10e9).epsilon(0.01));
  CHECK(both > 1.7 * alone);
  const std::vector<std::vector<int>> apart{{0, 1}, {2, 3}};
  CHECK(seconds(groups(apart, cluster, 1e9, Fidelity::kAutomatic)) ==
        Approx(seconds(groups(apart, cluster, 1e9, Fidelity::kAutomatic, false))));
}

TEST_CASE(
    "compute beside a collective runs slower by the multiprocessors that its blocks occupy, while it runs") {
  const Cluster cluster = cluster_named("h100x4-nvlink");
  const double message = 104857600.0;
  const double collective = time_of(CollectiveKind::kAllReduce, 4, message, cluster);
  const Model model = fixed_model(1, 1e-3, 1e-3, 4.0);
  Collective call;
  call.message = Bytes(message);
  const Schedule schedule =
      same_program(4, {operation("reduce", Stream::kComm, call),
                       operation("forward", Stream::kCompute, Compute{Phase::kForward, 0})});
  const double blocks = 24.0;
  CHECK(replay_nccl(schedule, cluster, model).median_step_time_s() ==
        Approx(1e-3 + blocks / 132.0 * collective).epsilon(1e-6));
}

TEST_CASE("collectives of two groups run concurrently on a rank, those of one group follow each other") {
  const Cluster cluster = cluster_named("h100x4-nvlink");
  const auto two_calls = [&cluster](bool same_group) {
    Schedule schedule = same_program(4, {});
    schedule.groups.push_back({"again", schedule.groups[0].ranks});
    Collective first;
    first.message = Bytes(8);
    Collective second = first;
    second.group = same_group ? 0 : 1;
    schedule.programs = {
        {{operation("first", Stream::kComm, first), operation("second", Stream::kComm, second)}}};
    return replay_nccl(schedule, cluster).median_step_time_s();
  };
  const double one = time_of(CollectiveKind::kAllReduce, 4, 8, cluster);
  CHECK(two_calls(true) == Approx(2.0 * one));
  CHECK(two_calls(false) == Approx(one));
}

TEST_CASE("messages, gather and scatter cost what NCCL's messages do") {
  const Cluster cluster = cluster_named("h100x4-nvlink");
  NcclGraphs graphs(cluster);
  const std::vector<int> gpus = cluster.places();
  for (const double message : {100.0, 1e8}) {
    const double expected =
        nccl_point_to_point(graphs.pair(gpus[0], gpus[1]), Bytes(message)).time(Bytes(message)).count();
    Schedule schedule = same_program(2, {});
    schedule.programs = {{{operation("send", Stream::kComm, Send{1, Bytes(message), 7})}},
                         {{operation("recv", Stream::kComm, Recv{-1, Bytes(message), 7})}}};
    schedule.program_of_rank = {0, 1};
    CHECK(replay_nccl(schedule, cluster).median_step_time_s() == Approx(expected).epsilon(1e-4));
  }
  // Three messages of a quarter share the root's NVLink of 370.8 GB/s.
  const double gather = time_of(CollectiveKind::kGather, 4, 4e9, cluster);
  CHECK(gather == Approx(3e9 / 370.8e9).epsilon(0.01));
  CHECK(time_of(CollectiveKind::kScatter, 4, 4e9, cluster) == Approx(gather));
}

TEST_CASE("all-to-all of NCCL takes the time of its formula, with three quarters of the array over NVLink") {
  const Cluster cluster = cluster_named("h100x4-nvlink");
  NcclGraphs graphs(cluster);
  const NcclCost cost = nccl_all_to_all(graphs.of(cluster.places()), Bytes(4e9));
  const double time = time_of(CollectiveKind::kAllToAll, 4, 4e9, cluster);
  CHECK(time == Approx(cost.time(Bytes(4e9)).count()).epsilon(0.01));
  CHECK(time > 3e9 / 370.8e9);
}

// Copies of 4,096 tokens of 7,168 elements for 8 experts each; mean of dispatch and combine.
TEST_CASE("all-to-alls between H100 hosts are within 5 % of Megatron's (arXiv 2603.07685, table 7)") {
  for (const auto& [hosts, measured] : {std::pair(2, 5701e-6), {4, 7937e-6}, {8, 8945.5e-6}}) {
    const Cluster cluster = cluster_named("h100-fat-tree:nodes=" + std::to_string(hosts));
    const double time = time_of(CollectiveKind::kAllToAll, 8 * hosts, 4096.0 * 8.0 * 7168.0 * 2.0, cluster);
    CAPTURE(hosts, time);
    CHECK(time == Approx(measured).epsilon(0.05));
  }
}

TEST_CASE(
    "a thousand messages at once of an all-to-all over 32 GPUs of four hosts share their links and end") {
  const double time =
      time_of(CollectiveKind::kAllToAll, 32, 32e6,
              cluster_named("h100-rails:nodes=8,hosts_per_pod=4,spines=4,oversubscription=4"));
  CHECK(time > 24.0 / 32.0 * 32e6 / 450e9);  // what leaves every host, over the GPU's own link
}

TEST_CASE("a narrower fabric makes no collective faster, and spare spines change nothing") {
  for (const CollectiveKind kind : {CollectiveKind::kAllGather, CollectiveKind::kBroadcast,
                                    CollectiveKind::kAllReduce, CollectiveKind::kAllToAll}) {
    const auto time = [&](const std::string& fabric) {
      return time_of(kind, 128, 64e6, cluster_named("h100-rails:nodes=16,hosts_per_pod=8," + fabric));
    };
    double before = 0.0;
    for (const char* oversubscription : {"1", "2", "2.5", "4", "8"}) {
      INFO(to_text(kind) << " " << oversubscription);
      const double now = time(std::string("spines=8,oversubscription=") + oversubscription);
      CHECK(now >= 0.999 * before);
      before = now;
    }
    CHECK(time("spines=32") == Approx(time("spines=8")));
  }
}

TEST_CASE("NCCL's choice can be restricted to its ring or its trees, and costs what they cost") {
  const Cluster cluster = cluster_named("h100x8-hgx:nodes=4");
  const Schedule schedule = one_collective(CollectiveKind::kAllReduce, 32, 1e6);
  const auto run = [&](const std::string& choice) {
    ReplayInput input = input_of(schedule, kNoModel, cluster);
    input.node_of_rank = place_ranks(cluster, 32);
    NcclGraphs graphs(cluster);
    input.backend = "nccl";
    input.nccl_graphs = &graphs;
    input.algorithms = parse_algorithms(choice, "nccl");
    return replay(input);
  };
  const Result ring = run("all_reduce=ring");
  const Result tree = run("all_reduce=double_binary_tree");
  CHECK_THAT(ring.notes.at("nccl"), Catch::Contains("ring/"));
  CHECK_THAT(tree.notes.at("nccl"), Catch::Contains("tree/"));
  const double free_choice = run("").median_step_time_s();
  CHECK(free_choice <= Approx(std::min(ring.median_step_time_s(), tree.median_step_time_s())));
  CHECK(ring.median_step_time_s() > tree.median_step_time_s());  // 62 steps of latency
}

TEST_CASE("one rank communicates for free, and NCCL on hosts without GPUs is refused") {
  const Cluster cluster = cluster_named("h100x4-nvlink");
  CHECK(time_of(CollectiveKind::kAllReduce, 1, 1e9, cluster) == 0.0);
  CHECK_THROWS_WITH(time_of(CollectiveKind::kAllReduce, 2, 1.0, cluster_named("laptop")),
                    Catch::Contains("'laptop' has no devices"));
  CHECK_THROWS_WITH(time_of(CollectiveKind::kAllReduce, 2, 1.0, cluster, Fidelity::kMessage),
                    Catch::Contains("--fidelity message"));
}

TEST_CASE("the backend is the requested one, the calibration's, or nccl if there are GPUs") {
  using Catch::Contains;
  const Cluster gpus = cluster_named("h100x4-nvlink");
  const Cluster laptop = cluster_named("laptop");
  const Calibration gloo = calibration();
  CHECK(backend_for("", nullptr, gpus) == "nccl");
  CHECK(backend_for("", nullptr, laptop).empty());
  CHECK_THROWS_WITH(backend_for("", &gloo, gpus), Contains("--backend gloo"));
  CHECK(backend_for("gloo", &gloo, gpus) == "gloo");
  CHECK(backend_for("gloo", nullptr, gpus) == "gloo");
  CHECK_THROWS_WITH(backend_for("nccl", &gloo, gpus), Contains("calibration of gloo"));
  CHECK_THROWS_WITH(backend_for("nccle", nullptr, gpus), Contains("did you mean 'nccl'"));
}

TEST_CASE("bytes sent by the busiest rank equal the closed form of the ring") {
  const Cluster cluster = cluster_named("h100x4-direct");
  const Result result = replay_nccl(one_collective(CollectiveKind::kAllReduce, 4, 1e9), cluster);
  CHECK(result.bytes_sent_per_rank == Approx(2.0 * 3.0 / 4.0 * 1e9));
}

}  // namespace
}  // namespace stepcast::nccl_test
