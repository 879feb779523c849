#include <algorithm>
#include <catch2/catch.hpp>
#include <set>
#include <sstream>

#include "core/error.hpp"
#include "core/file.hpp"
#include "runner/lab/namespaces.hpp"
#include "runner/lab/plan.hpp"
#include "runner/lab/validation.hpp"

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

TEST_CASE("the lab refuses what it cannot build and says why") {
  CHECK_THROWS_WITH(plan_lab(load_cluster("h100x8-hgx"), "t"),
                    Contains("cannot build") && Contains("PCIe switch"));
  CHECK_THROWS_WITH(plan_lab(load_cluster("h100-fat-tree"), "t"), Contains("cannot build"));
  CHECK_THROWS_WITH(plan_lab(load_cluster("lab-star:hosts=251"), "t"), Contains("251 hosts, at most 250"));
  CHECK_THROWS_AS(plan_lab(load_cluster("lab-star"), "a-b"), UsageError);
  CHECK_THROWS_AS(plan_lab(load_cluster("lab-star"), ""), UsageError);
}

TEST_CASE("two ways between two hosts are refused, which bridges would send frames round on") {
  Cluster cluster = load_cluster("lab-star:hosts=2");
  cluster.links.push_back(cluster.links.front());
  cluster.links.back().name = "second";
  CHECK_THROWS_WITH(plan_lab(cluster, "t"), Contains("'second' is a second way"));
}

TEST_CASE("ranks of a lab fill host after host and know where rank 0 is") {
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

TEST_CASE("the matrix of lab validate holds what it promises") {
  const std::vector<LabPoint> all = LabMatrix("lab").points();
  std::set<std::string> names;
  std::set<std::string> hosts;
  std::set<double> rates;
  int replayed = 0;
  for (const LabPoint& one : all) {
    INFO(one.name);
    CHECK(names.insert(one.name).second);
    hosts.insert(one.settings.at("world-size"));
    const double rate = parse_bytes_per_second(one.settings.at("rate"), "rate").count();
    rates.insert(rate);
    const bool waits = one.settings.at("compute") == "replayed";
    replayed += waits ? 1 : 0;
    CHECK((waits || one.settings.at("world-size") == "2"));  // as many as this machine has cores
    const LabPlan plan = plan_lab(load_cluster(one.settings.at("cluster")), "t");
    CHECK(std::to_string(plan.hosts.size()) == one.settings.at("world-size"));
    CHECK(plan.links.back().bandwidth.count() == Approx(0.941 * rate));  // a host's
  }
  CHECK(replayed >= 60);
  CHECK(static_cast<int>(all.size()) - replayed >= 12);
  CHECK(hosts == std::set<std::string>{"2", "4", "8"});
  CHECK(rates == std::set<double>{12.5e6, 125e6, 312.5e6, 625e6});
  CHECK(LabMatrix("lab-quick").points().size() == 12);
  for (const YamlNode& change : LabMatrix("lab").at("changes").items()) {
    CHECK(names.contains(change.at("plain").text()));
    CHECK(names.contains(change.at("changed").text()));
  }
}

TEST_CASE("the matrix of lab validate is the one of the reference, in its order") {
  std::ostringstream all;
  for (const std::string study : {"lab", "lab-quick"})
    for (const LabPoint& one : LabMatrix(study).points()) {
      all << (study == "lab" ? "lab " : "quick ") << one.name;
      for (const std::string key : {"cluster", "world-size", "model", "batch", "compute"})
        all << " --" << key << " " << one.settings.at(key);
      for (const std::string& word : one.words({"cluster", "world-size", "model", "batch", "compute"}))
        all << " " << word;
      all << " # " << parse_bytes_per_second(one.settings.at("rate"), "rate").count() << " B/s, "
          << distance_of(one) << "\n";
    }
  for (const YamlNode& change : LabMatrix("lab").at("changes").items())
    all << "change " << change.at("name").text() << ": " << change.at("plain").text() << " to "
        << change.at("changed").text() << "\n";
  CHECK(all.str() == read_file(STEPCAST_SOURCE_DIR "/tests/runner/reference/lab-matrix.txt"));
}

TEST_CASE("a case is as far from the calibration as its farthest property") {
  LabPoint one{"one", {{"kind", "lab-star"}, {"world-size", "2"}, {"rate", "1Gb/s"}}, {}};
  CHECK(distance_of(one) == kSeenRateSeenSize);
  one.settings["rate"] = "100Mb/s";
  CHECK(distance_of(one) == kNewRate);
  one.settings["world-size"] = "4";
  CHECK(distance_of(one) == kNewWorldSize);
  one.settings["kind"] = "lab-straggler";
  CHECK(distance_of(one) == kNewTopology);
}

}  // namespace
}  // namespace stepcast::lab_plan_test
