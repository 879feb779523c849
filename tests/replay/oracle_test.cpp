#include <catch2/catch.hpp>
#include <random>
#include <string>
#include <vector>

#include "sim/collectives/nccl_graph.hpp"
#include "tests/collectives/nccl_reference.hpp"
#include "tests/worlds.hpp"

/// NCCL's collectives with the built-in solver and with SimGrid (`--exact`).
namespace stepcast::oracle_test {
namespace {

using namespace worlds;
using nccl_reference::cluster_named;

constexpr double kEqual = 1e-4;

const Model kNoModel;

class Draw {
 public:
  explicit Draw(unsigned seed) : random_(seed) {}
  template <class Value>
  const Value& from(const std::vector<Value>& values) {
    return values[static_cast<std::size_t>(between(0, static_cast<int>(values.size()) - 1))];
  }
  int between(int least, int most) { return std::uniform_int_distribution<int>(least, most)(random_); }
  double real(double least, double most) {
    return std::uniform_real_distribution<double>(least, most)(random_);
  }

 private:
  std::mt19937_64 random_;
};

/// Clusters whose links are narrow enough for collectives of several groups to wait for each other.
Cluster drawn_cluster(Draw& draw, bool degraded) {
  Cluster cluster = cluster_named(draw.from(std::vector<std::string>{
      "two-racks", "p100x4-switched", "p100x4-pcie", "l40s-pcie", "h100x8-hgx:nodes=2,rate=50Gb/s",
      "h100-rails:nodes=4,hosts_per_pod=2,spines=1,oversubscription=64",
      "h100-rails:nodes=6,hosts_per_pod=2,spines=2,oversubscription=32"}));
  if (!degraded) return cluster;
  Link& link =
      cluster.links[static_cast<std::size_t>(draw.between(0, static_cast<int>(cluster.links.size()) - 1))];
  link.remaining = draw.real(0.1, 0.9);
  link.bandwidth = link.remaining * link.bandwidth;
  return cluster;
}

/// Groups of every n-th rank or of adjacent ranks, which call up to three collectives each at once.
Schedule drawn_schedule(Draw& draw, int ranks) {
  Schedule schedule = same_program(ranks, {});
  schedule.groups.clear();
  schedule.programs.clear();
  const int groups = draw.from(std::vector<int>{2, 2, ranks / 2});
  const bool adjacent = draw.between(0, 3) == 0;
  const int size = ranks / groups;
  for (int group = 0; group < groups; ++group) {
    Group& own = schedule.groups.emplace_back("group" + std::to_string(group), std::vector<int>{});
    for (int i = 0; i < size; ++i) own.ranks.push_back(adjacent ? group * size + i : group + i * groups);
    Program& program = schedule.programs.emplace_back();
    for (int call = draw.between(1, 3); call > 0; --call) {
      Collective collective;
      collective.kind = draw.from(std::vector(kCollectiveKinds.begin(), kCollectiveKinds.end())).value;
      collective.message = Bytes(draw.from(std::vector<double>{4e4, 3e7, 3e8, 1e9}));
      collective.group = group;
      collective.root = draw.between(0, size - 1);
      program.ops.push_back(operation("call" + std::to_string(call), Stream::kComm, collective));
    }
    for (const int rank : own.ranks) schedule.program_of_rank[static_cast<std::size_t>(rank)] = group;
  }
  return schedule;
}

Result replayed(const Schedule& schedule, const Cluster& cluster, bool exact) {
  ReplayInput input = input_of(schedule, kNoModel, cluster);
  NcclGraphs graphs(cluster);
  input.backend = "nccl";
  input.nccl_graphs = &graphs;
  input.exact = input.simgrid = exact;
  return replay(input);
}

TEST_CASE("the built-in solver equals SimGrid in 200 draws of NCCL's collectives, 20 with a degraded link",
          "[law]") {
  int contended = 0;
  for (unsigned seed = 1; seed <= 200; ++seed) {
    Draw draw(seed);
    const Cluster cluster = drawn_cluster(draw, seed % 10 == 0);
    const Schedule schedule = drawn_schedule(draw, static_cast<int>(cluster.places().size()));
    INFO("seed " << seed << ", " << cluster.name);
    const Result own = replayed(schedule, cluster, false);
    const Result simgrid = replayed(schedule, cluster, true);
    CHECK_FALSE(own.notes.contains("exact"));
    CHECK(simgrid.notes.contains("exact"));
    for (std::size_t rank = 0; rank < own.step_time_s.size(); ++rank)
      CHECK(own.step_time_s[rank][0] == Approx(simgrid.step_time_s[rank][0]).epsilon(kEqual));
    Schedule alone = schedule;
    for (std::size_t group = 1; group < alone.programs.size(); ++group) alone.programs[group].ops.clear();
    const auto first = static_cast<std::size_t>(schedule.groups[0].ranks[0]);
    if (own.step_time_s[first][0] > 1.01 * replayed(alone, cluster, false).step_time_s[first][0]) ++contended;
  }
  CHECK(contended >= 50);
}

/// Ranks 0 and 2, and 1 and 3, behind two PCIe switches whose uplink carries 10 GB/s in each direction.
TEST_CASE("two groups on one link take its bytes over its bandwidth, with both solvers, for every kind") {
  constexpr double kMessage = 4e9, kBandwidth = 10e9;
  const Cluster cluster = cluster_named("p100x4-switched");
  for (const auto& [kind, sent] :
       std::vector<std::pair<CollectiveKind, double>>{{CollectiveKind::kAllReduce, 1.0},      // 2 (n - 1)/n
                                                      {CollectiveKind::kAllGather, 0.5},      // (n - 1)/n
                                                      {CollectiveKind::kReduceScatter, 0.5},  // (n - 1)/n
                                                      {CollectiveKind::kBroadcast, 1.0},
                                                      {CollectiveKind::kGather, 0.5},
                                                      {CollectiveKind::kScatter, 0.5},
                                                      {CollectiveKind::kAllToAll, 0.5},
                                                      {CollectiveKind::kShift, 1.0}}) {
    Schedule schedule = same_program(4, {});
    schedule.groups = {{"even", {0, 2}}, {"odd", {1, 3}}};
    schedule.programs.clear();
    for (int group = 0; group < 2; ++group) {
      Collective call;
      call.kind = kind;
      call.message = Bytes(kMessage);
      call.group = group;
      schedule.programs.push_back({{operation("call", Stream::kComm, call)}});
    }
    schedule.program_of_rank = {0, 1, 0, 1};
    INFO(to_text(kind));
    for (const bool exact : {false, true})
      CHECK(replayed(schedule, cluster, exact).median_step_time_s() ==
            Approx(2.0 * sent * kMessage / kBandwidth).epsilon(0.002));
  }
}

TEST_CASE("--exact of NCCL is refused beyond 512 ranks, with the limit and the number found") {
  const Cluster cluster = cluster_named("h100x8-hgx:nodes=65");
  const Schedule schedule = one_collective(CollectiveKind::kAllReduce, 520, 1e6);
  CHECK_THROWS_WITH(replayed(schedule, cluster, true), Catch::Contains("at most 512 ranks, found 520"));
}

}  // namespace
}  // namespace stepcast::oracle_test
