#include <algorithm>
#include <catch2/catch.hpp>
#include <regex>
#include <set>
#include <sstream>

#include "core/error.hpp"
#include "core/file.hpp"
#include "runner/lab/namespaces.hpp"
#include "runner/lab/plan.hpp"

namespace stepcast::lab_plan_test {
namespace {

using Catch::Contains;

TEST_CASE("a lab has a namespace per host, one for all switches, and the cluster's links") {
  const LabPlan plan = plan_lab(load_cluster("lab-two-racks:hosts=4,rate=1Gb/s,oversubscription=2"), "t");
  REQUIRE(plan.hosts.size() == 4);
  CHECK(plan.hosts[3].space == "stepcast-t-host3");
  CHECK(plan.hosts[3].address == "10.77.0.4");
  CHECK(plan.bridges.size() == 3);  // a spine and two leaves
  REQUIRE(plan.links.size() == 6);
  std::set<std::string> ends;
  for (const LabLink& link : plan.links) {
    for (const LabEnd& end : {link.a, link.b}) {
      CHECK((end.bridge < 0) == (end.interface == "eth0"));
      CHECK((end.space == plan.switches) == (end.bridge >= 0));
      CHECK(end.interface.size() < 16);  // as the kernel wants it
      ends.insert(end.space + " " + end.interface);
    }
    CHECK(link.bandwidth.count() ==
          Approx(0.941 * 125e6));  // uplinks: two hosts' over an oversubscription of 2
  }
  CHECK(ends.size() == 12);
}

TEST_CASE("degraded links and stragglers reach the lab") {
  const LabPlan slow = plan_lab(load_cluster("lab-slow-link:hosts=2,rate=1Gb/s"), "t");
  CHECK(slow.links[1].bandwidth.count() == Approx(0.5 * slow.links[0].bandwidth.count()));
  const LabPlan straggler = plan_lab(load_cluster("lab-straggler:hosts=3"), "t");
  CHECK(straggler.hosts[0].speed == 1.0);
  CHECK(straggler.hosts[1].speed == Approx(0.6667));
}

TEST_CASE("a cluster that the lab cannot build is an error with the reason") {
  CHECK_THROWS_WITH(plan_lab(load_cluster("h100x8-hgx"), "t"),
                    Contains("cannot build") && Contains("PCIe switch"));
  CHECK_THROWS_WITH(plan_lab(load_cluster("h100-fat-tree"), "t"), Contains("cannot build"));
  CHECK_THROWS_WITH(plan_lab(load_cluster("laptop"), "t"), Contains("host 'laptop' has no link"));
  CHECK_THROWS_WITH(plan_lab(load_cluster("lab-star:hosts=251"), "t"), Contains("251 hosts, at most 250"));
  CHECK_THROWS_AS(plan_lab(load_cluster("lab-star"), "a-b"), UsageError);
  CHECK_THROWS_AS(plan_lab(load_cluster("lab-star"), ""), UsageError);
}

TEST_CASE("two ways between two hosts are an error, because bridges would forward frames in loops") {
  Cluster cluster = load_cluster("lab-star:hosts=2");
  cluster.links.push_back(cluster.links.front());
  cluster.links.back().name = "second";
  CHECK_THROWS_WITH(plan_lab(cluster, "t"), Contains("'second' is a second way"));
}

TEST_CASE("ranks of a lab fill host after host and have rank 0's address") {
  const LabPlan plan = plan_lab(load_cluster("lab-star:hosts=3"), "t");
  const std::vector<RankStart> ranks = lab_ranks(plan.hosts, 2);
  REQUIRE(ranks.size() == 6);
  for (int rank = 0; rank < 6; ++rank) {
    const RankStart& start = ranks[static_cast<std::size_t>(rank)];
    CHECK(start.variables.at("RANK") == std::to_string(rank));
    CHECK(start.variables.at("WORLD_SIZE") == "6");
    CHECK(start.variables.at("LOCAL_RANK") == std::to_string(rank % 2));
    CHECK(start.variables.at("LOCAL_WORLD_SIZE") == "2");
    CHECK(start.variables.at("MASTER_ADDR") == "10.77.0.1");
    CHECK(start.variables.at("STEPCAST_HOST_NAME") == "host" + std::to_string(rank / 2));
    CHECK(start.network_namespace == "/run/netns/stepcast-t-host" + std::to_string(rank / 2));
  }
}

TEST_CASE("every cluster of the lab's study can be built") {
  std::istringstream lines(read_file(STEPCAST_SOURCE_DIR "/tests/study/lab-matrix.txt"));
  std::set<std::string> clusters;
  const std::regex kCluster("--cluster (\\S+) --world-size (\\d+) .* # (\\S+) B/s");
  std::smatch found;
  for (std::string line; std::getline(lines, line);) {
    if (!std::regex_search(line, found, kCluster) || !clusters.insert(found[1]).second) continue;
    INFO(line);
    const LabPlan plan = plan_lab(load_cluster(found[1]), "t");
    CHECK(std::to_string(plan.hosts.size()) == found[2]);
    CHECK(plan.links.back().bandwidth.count() == Approx(0.941 * std::stod(found[3])));  // a host's
  }
  CHECK(clusters.size() >= 10);
}

}  // namespace
}  // namespace stepcast::lab_plan_test
